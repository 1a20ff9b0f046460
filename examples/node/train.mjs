// Train an exported training step from Node, and compare the losses with those of the estimator in Python.
//
//   node train.mjs files [package]
//
// `files` is the output folder of export_digits.py; `package` is onnxruntime-node, or onnxruntime-web.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { TrainingStep } from "./training_step.mjs";

const [folder, runtime = "onnxruntime-node"] = process.argv.slice(2);
const module = await import(runtime);
const ort = module.default ?? module;

const readJson = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));

// The bytes of a file, in a separate buffer: views on it need an aligned start.
function readBytes(name) {
  const bytes = readFileSync(join(folder, name));
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
}

const data = readJson("data.json");
const X = new Float32Array(readBytes("X.bin"));
const manifest = readJson("step.json");
const step = await TrainingStep.open(ort, manifest, readBytes(manifest.model), readBytes(manifest.values.file));
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
