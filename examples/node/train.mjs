// Train an exported training step from Node, and compare the losses with those of the estimator in Python.
//
//   node train.mjs files [package]
//
// `files` is the output folder of export_digits.py; `package` is onnxruntime-node, or onnxruntime-web.
import { readFileSync } from "node:fs";
import { join } from "node:path";

const [folder, runtime = "onnxruntime-node"] = process.argv.slice(2);
const module = await import(runtime);
const ort = module.default ?? module;

const ARRAYS = { float32: Float32Array, float64: Float64Array, int32: Int32Array, uint8: Uint8Array };
const readJson = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));

// The bytes of a file, in a separate buffer: views on it need an aligned start.
function readBytes(name) {
  const bytes = readFileSync(join(folder, name));
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
}

// A formula of the manifest is valid JavaScript arithmetic, given its few functions.
function compile(formula, names) {
  const { min, max, sqrt, exp, log, cos } = Math;
  const words = { min, max, sqrt, exp, log, cos };
  const run = new Function(...Object.keys(words), ...names, `return ${formula};`);
  return (known) => run(...Object.values(words), ...names.map((name) => known[name]));
}

class TrainingStep {
  static async open(name) {
    const step = new TrainingStep();
    const manifest = readJson(name);
    step.manifest = manifest;
    step.session = await ort.InferenceSession.create(new Uint8Array(readBytes(manifest.model)));
    const values = readBytes(manifest.values.file);
    step.tensors = {};
    for (const tensor of manifest.tensors) {
      const Type = ARRAYS[tensor.dtype];
      const data = new Type(values, tensor.offset, tensor.bytes / Type.BYTES_PER_ELEMENT);
      step.tensors[tensor.input] = new ort.Tensor(tensor.dtype, data.slice(), tensor.shape);
    }
    step.numbers = {};
    for (const number of manifest.numbers) if ("start" in number) step.numbers[number.name] = number.start;
    const names = manifest.numbers.map((number) => number.name);
    step.formulas = manifest.numbers.map((number) => [number.name, compile(number.formula, names)]);
    step.sampleWeight = compile(manifest.sample_weight.formula, ["w", "total"]);
    step.gradientWeight = compile(manifest.gradient_weight.formula, ["w", "rows", "sample_weight", "eta"]);
    return step;
  }

  // One update for each batch of the rows, in their order; the mean loss.
  async epoch(X, nFeatures, labels) {
    const size = this.manifest.batch_size;
    let sum = 0;
    for (let start = 0; start < labels.length; start += size) {
      const count = Math.min(size, labels.length - start);
      const rows = Array.from({ length: size }, (_, i) => start + (i % count));
      const weights = rows.map((_, i) => (i < count ? 1 : 0));
      sum += await this.update(X, nFeatures, labels, rows, weights);
    }
    return sum / labels.length;
  }

  // One update; the weighted sum of the losses of the batch before it.
  async update(X, nFeatures, labels, rows, weights) {
    const { features, target, sample_weight, gradient_weight, numbers, tensors, loss } = this.manifest;
    for (const [name, formula] of this.formulas) this.numbers[name] = formula(this.numbers);
    const total = weights.reduce((a, b) => a + b);
    const sample = weights.map((w) => this.sampleWeight({ w, total }));
    const counted = weights.filter((w) => w !== 0).length;
    const gradient = weights.map((w, i) =>
      this.gradientWeight({ w, rows: counted, sample_weight: sample[i], eta: this.numbers.eta }));
    const feeds = { ...this.tensors };
    feeds[features[0].input] = tensor(features[0], rows.flatMap((row) =>
      Array.from(X.subarray(row * nFeatures, (row + 1) * nFeatures))));
    feeds[target.input] = tensor(target, rows.flatMap((row) =>
      target.classes.map((name) => (name === labels[row] ? target.high : target.low))));
    feeds[sample_weight.input] = tensor(sample_weight, sample);
    feeds[gradient_weight.input] = tensor(gradient_weight, gradient);
    for (const number of numbers) {
      if (number.input) feeds[number.input] = tensor(number, [this.numbers[number.name]]);
    }
    const outputs = await this.session.run(feeds);
    for (const { input, output } of tensors) this.tensors[input] = outputs[output];
    return (outputs[loss.output].data[0] * total) / sample.reduce((a, b) => a + b);
  }

  penalty() {
    const { l1, l2, of } = this.manifest.penalty;
    let sum = 0;
    for (const { role, name, input } of this.manifest.tensors) {
      if (role !== "weight" || !of.includes(name)) continue;
      for (const w of this.tensors[input].data) sum += l1 * Math.abs(w) + (l2 / 2) * w * w;
    }
    return sum;
  }
}

function tensor({ dtype, shape }, numbers) {
  return new ort.Tensor(dtype, ARRAYS[dtype].from(numbers), shape);
}

const data = readJson("data.json");
const X = new Float32Array(readBytes("X.bin"));
const step = await TrainingStep.open("step.json");
let worst = 0;
for (const [index, expected] of data.losses.entries()) {
  const loss = (await step.epoch(X, data.n_features, data.y)) + step.penalty();
  worst = Math.max(worst, Math.abs(loss - expected));
  console.log(`epoch ${index + 1}: loss ${loss.toFixed(6)}, in Python ${expected.toFixed(6)}`);
}
if (!(worst < 1e-4)) {
  console.error(`the losses differ by up to ${worst}`);
  process.exit(1);
}
console.log(`the same losses, with ${runtime} alone`);
