// The training step that `export_training_step` writes, for any edition of onnxruntime: in Node, in a browser.
//
// `ort` is the module of the runtime, `manifest` the parsed JSON file, `model` and `values` the bytes of the
// files it names.

const ARRAYS = { float32: Float32Array, float64: Float64Array, int32: Int32Array, uint8: Uint8Array };

// A formula of the manifest is valid JavaScript arithmetic, given its few functions.
function compile(formula, names) {
  const { min, max, floor, sqrt, exp, log, cos } = Math;
  const words = { min, max, floor, sqrt, exp, log, cos };
  const run = new Function(...Object.keys(words), ...names, `return ${formula};`);
  return (known) => run(...Object.values(words), ...names.map((name) => known[name]));
}

export class TrainingStep {
  static async open(ort, manifest, model, values) {
    const step = new TrainingStep();
    step.ort = ort;
    step.manifest = manifest;
    step.session = await ort.InferenceSession.create(new Uint8Array(model));
    step.tensors = {};
    for (const { input, dtype, shape, offset, bytes } of manifest.tensors) {
      const Type = ARRAYS[dtype];
      const data = new Type(values, offset, bytes / Type.BYTES_PER_ELEMENT);
      step.tensors[input] = new ort.Tensor(dtype, data.slice(), shape);
    }
    step.numbers = {};
    for (const number of manifest.numbers) if ("start" in number) step.numbers[number.name] = number.start;
    const names = manifest.numbers.map((number) => number.name);
    // the masks of dropout follow from numbers that are drawn
    step.formulas = manifest.numbers.map((number) => [number.name,
      "random" in number ? () => Math.floor(Math.random() * number.below) : compile(number.formula, names)]);
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
    feeds[features[0].input] = this.tensor(features[0], rows.flatMap((row) =>
      Array.from(X.subarray(row * nFeatures, (row + 1) * nFeatures))));
    feeds[target.input] = this.tensor(target, rows.flatMap((row) =>
      target.classes.map((name) => (name === labels[row] ? target.high : target.low))));
    feeds[sample_weight.input] = this.tensor(sample_weight, sample);
    feeds[gradient_weight.input] = this.tensor(gradient_weight, gradient);
    for (const number of numbers) {
      if (number.input) feeds[number.input] = this.tensor(number, [this.numbers[number.name]]);
    }
    const outputs = await this.session.run(feeds);
    for (const { input, output } of tensors) this.tensors[input] = outputs[output];
    return (outputs[loss.output].data[0] * total) / sample.reduce((a, b) => a + b);
  }

  penalty() {
    let sum = 0;
    const weights = this.weights();
    for (const { l1, l2, of, groups, from_start } of this.manifest.penalties) {
      for (const name of of) {
        const start = from_start && this.manifest.tensors.find((t) => t.kind === "start" && t.of === name);
        const { data, dims } = weights[name];
        // the slices along one axis are groups; without any, each element is one
        const length = groups ? dims[groups[name]] : data.length;
        const stride = groups ? dims.slice(groups[name] + 1).reduce((a, b) => a * b, 1) : 1;
        const squares = new Float64Array(length);
        data.forEach((w, i) => {
          const d = start ? w - this.tensors[start.input].data[i] : w;
          squares[Math.floor(i / stride) % length] += d * d;
        });
        for (const square of squares) {
          sum += l1 * Math.sqrt((square * data.length) / length) + (l2 / 2) * square;
        }
      }
    }
    return sum;
  }

  // The present weights, under the names of their inputs.
  weights() {
    const named = this.manifest.tensors.filter(({ role }) => role === "weight");
    return Object.fromEntries(named.map(({ name, input }) => [name, this.tensors[input]]));
  }

  tensor({ dtype, shape }, numbers) {
    return new this.ort.Tensor(dtype, ARRAYS[dtype].from(numbers), shape);
  }
}
