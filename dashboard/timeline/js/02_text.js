// Numbers as people read them. Text reaches the page through textContent and fillText only, never as markup.

const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

function formatTime(ns, digits = 3) {
  if (ns === 0) return "0";
  const [scale, unit] = TIME_UNITS.find(([size]) => Math.abs(ns) >= size) ?? [1, "ns"];
  return `${trimmed(ns / scale, unit === "ns" ? 0 : digits)} ${unit}`;
}

// A tick's label: in the axis's unit, that of its largest time, with as many digits as it takes to tell neighbours apart.
function formatTick(ns, step, largest) {
  const [scale, unit] = TIME_UNITS.find(([size]) => largest >= size) ?? [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
  return `${(ns / scale).toFixed(Math.min(digits, 9))} ${unit}`;
}

function trimmed(value, significant) {
  const whole = value === 0 ? 1 : Math.floor(Math.log10(Math.abs(value))) + 1; // negative below a tenth
  const digits = Math.min(Math.max(0, significant - whole), 12);
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: digits });
}

function formatBytes(bytes) {
  const units = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];  // as executor/units.py
  const [scale, unit] = units.find(([size]) => bytes >= size) ?? [1, "B"];
  return `${trimmed(bytes / scale, 3)} ${unit}`;
}

function formatCount(count) {
  return count.toLocaleString("en");
}

function plural(count, word) {
  return `${formatCount(count)} ${word}${count === 1 ? "" : "s"}`;
}

// "ffn_down_exps|ffn_gate_exps|ffn_up_exps" and "blk.3.ffn_up.weight" are long for a bar of fifty pixels.
function shortTensor(tensor) {
  const parts = tensor.split("|").map((part) => part.replace(/^blk\.\d+\./, "").replace(/\.weight$/, ""));
  if (parts.length < 2) return parts[0];
  const words = parts.map((part) => part.split("_"));
  const common = words[0].filter((word) => words.every((other) => other.includes(word)));
  return common.length ? `${common.join("_")} ×${parts.length}` : `${parts[0]} +${parts.length - 1}`;
}

function barText(event) {
  const layer = event.layer === null ? "" : `L${event.layer} `;
  if (event.lane.category === "wait") return `${layer}wait`;
  if (event.bytes !== null) return `${layer}${event.tensor ? shortTensor(event.tensor) : event.name ?? ""}`;
  return `${layer}${event.name ?? event.lane.category}`;
}

// What a search looks at: everything that an event's details say in words.
function haystacks(model) {
  const column = model.columns, texts = model.header.texts, n = column.of_name.length;
  return Array.from({ length: n }, (_, i) => {
    const words = ["name", "tensor", "source_memory", "detail"].map((k) => texts[column[`of_${k}`][i]] ?? "");
    const layer = column.of_layer[i];
    if (layer >= 0) words.push(`layer ${layer} layer:${layer} l${layer}`);
    if (column.of_slot[i] >= 0) words.push(`slot ${column.of_slot[i]} slot:${column.of_slot[i]}`);
    return ` ${words.join(" ").toLowerCase()} `;
  });
}

// "layer:3" and "L3" mean that layer alone; other words match anywhere.
function matcher(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => words.every((word) => (/^(layer:|l|slot:)\d+$/.test(word) ? text.includes(` ${word} `) : text.includes(word)));
}
