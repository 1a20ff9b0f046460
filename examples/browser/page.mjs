// Train a network on digits that a visitor draws: the page of index.html.
import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
import { TrainingStep } from "../node/training_step.mjs";

const UPDATES = 5;
const SIDE = 32; // pixels of a digit before the mean over blocks of 4 x 4, as in the data set
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url).href;

const element = (id) => document.getElementById(id);
const status = (text) => { element("status").textContent = text; };
const bytes = async (name) => (await fetch(`files/${name}`)).arrayBuffer();
const json = async (name) => (await fetch(`files/${name}`)).json();

const drawing = element("drawing");
const pen = drawing.getContext("2d", { willReadFrequently: true });
const losses = [];
let busy = Promise.resolve();

const [manifest, data] = await Promise.all([json("step.json"), json("data.json")]);
const seen = new Float32Array(await bytes("X.bin"));
const step = await TrainingStep.open(ort, manifest, await bytes(manifest.model), await bytes(manifest.values.file));
const network = await ort.InferenceSession.create(new Uint8Array(await bytes("predict.onnx")));

// The ink of the canvas, cut out, scaled to the height of the grid and put into its middle: 64 numbers in [0, 1].
function digit() {
  const { width, height } = drawing;
  const pixels = pen.getImageData(0, 0, width, height).data;
  const isInk = (x, y) => pixels[4 * (y * width + x)] < 128;
  let [left, right, top, bottom] = [width, -1, height, -1];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (!isInk(x, y)) continue;
      left = Math.min(left, x); right = Math.max(right, x);
      top = Math.min(top, y); bottom = Math.max(bottom, y);
    }
  }
  const values = new Float32Array(64);
  if (right < 0) return null;
  const scale = Math.max(bottom - top + 1, right - left + 1) / SIDE;
  const shift = (SIDE - (right - left + 1) / scale) / 2;
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) {
      const x = Math.round(left + (column - shift + 0.5) * scale - 0.5);
      const y = Math.round(top + (row + 0.5) * scale - 0.5);
      const isInside = x >= left && x <= right && y >= top && y <= bottom;
      if (isInside && isInk(x, y)) values[8 * (row >> 2) + (column >> 2)] += 1 / 16;
    }
  }
  return values;
}

async function predict(values) {
  const { probabilities } = await network.run({ X: new ort.Tensor("float32", values, [1, 64]), ...step.weights() });
  return Array.from(probabilities.data);
}

function show(probabilities) {
  const best = Math.max(...probabilities);
  element("bars").replaceChildren(...probabilities.map((p, i) => {
    const row = document.createElement("div");
    row.className = p === best ? "best" : "";
    const [name, bar, number] = ["", "", ""].map(() => document.createElement("span"));
    name.textContent = i;
    bar.style.width = `${70 * p}%`;
    number.textContent = p.toFixed(2);
    row.append(name, bar, number);
    return row;
  }));
}

function plot() {
  const most = Math.max(...losses, 1e-6);
  const width = 600 / Math.max(1, losses.length - 1);
  const points = losses.map((loss, i) => `${i * width},${135 - (125 * loss) / most}`);
  document.querySelector("#curve polyline").setAttribute("points", points.join(" "));
}

// Five updates on the drawing and seven digits of the data set each.
async function learn(values, label) {
  const rows = data.y.length;
  const X = new Float32Array(8 * 64);
  let loss = 0;
  for (let update = 0; update < UPDATES; update++) {
    const labels = [label];
    X.set(values, 0);
    for (let i = 1; i < 8; i++) {
      const row = Math.floor(Math.random() * rows);
      X.set(seen.subarray(64 * row, 64 * row + 64), 64 * i);
      labels.push(data.y[row]);
    }
    loss = await step.update(X, 64, labels, [0, 1, 2, 3, 4, 5, 6, 7], new Array(8).fill(1));
    losses.push(loss);
  }
  plot();
  show(await predict(values));
  status(`Learned ${label}: loss ${loss.toFixed(3)} after ${losses.length} updates.`);
}

// One task at a time: the buttons stay usable.
function queue(task) {
  busy = busy.then(task).catch((error) => status(`That failed: ${error.message}`));
  return busy;
}

function look() {
  const values = digit();
  if (values === null) return;
  queue(async () => {
    const probabilities = await predict(values);
    show(probabilities);
    const best = probabilities.indexOf(Math.max(...probabilities));
    status(`I see ${best}. Press the right digit to teach me.`);
  });
}

function clear() {
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, drawing.width, drawing.height);
}

function draw(event) {
  if (!event.buttons) return;
  const place = drawing.getBoundingClientRect();
  const x = ((event.clientX - place.left) / place.width) * drawing.width;
  const y = ((event.clientY - place.top) / place.height) * drawing.height;
  if (event.type === "pointerdown") { pen.beginPath(); pen.moveTo(x, y); }
  pen.lineWidth = 26; pen.lineCap = pen.lineJoin = "round"; pen.strokeStyle = "#000";
  pen.lineTo(x, y);
  pen.stroke();
}

async function open(event) {
  const [file] = event.target.files;
  if (!file) return;
  try {
    const image = await createImageBitmap(file);
    const scale = Math.min(drawing.width / image.width, drawing.height / image.height);
    clear();
    pen.drawImage(image, 0, 0, image.width * scale, image.height * scale);
  } catch {
    status(`${file.name} is no picture that this browser can read.`);
    return;
  }
  look();
}

clear();
for (let label = 0; label < 10; label++) {
  const button = document.createElement("button");
  button.textContent = label;
  button.addEventListener("click", () => {
    const values = digit();
    if (values === null) status("Draw a digit first.");
    else queue(() => learn(values, label));
  });
  element("labels").append(button);
}
for (const kind of ["pointerdown", "pointermove"]) drawing.addEventListener(kind, draw);
drawing.addEventListener("pointerup", look);
element("clear").addEventListener("click", clear);
element("picture").addEventListener("change", open);
show(new Array(10).fill(0.1));
status("Ready: draw a digit.");
document.body.dataset.ready = "true";
