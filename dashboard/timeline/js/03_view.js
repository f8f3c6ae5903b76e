// Which stretch of time is on the screen, and how the sides are laid on each other.

class TimeView {
  // Times are on the common axis: a side's own time minus its offset. `bounds` limits how far one can go.
  constructor() {
    this.from = 0;
    this.to = 1;
    this.bounds = [0, 1];
  }

  get span() {
    return this.to - this.from;
  }

  setBounds(sides) {
    const drawn = sides.filter((side) => side.extent[1] > side.extent[0]);
    const firsts = drawn.map((side) => side.extent[0] - side.offset), lasts = drawn.map((side) => side.extent[1] - side.offset);
    this.bounds = drawn.length ? [Math.min(...firsts), Math.max(...lasts)] : [0, 1e6];
  }

  // Everything with a margin: what `fit` shows, and the strip, so that both lie one above the other.
  get whole() {
    const margin = (this.bounds[1] - this.bounds[0]) * 0.02;
    return [this.bounds[0] - margin, this.bounds[1] + margin];
  }

  show(from, to) {
    const whole = this.bounds[1] - this.bounds[0];
    const span = Math.min(Math.max(to - from, 20), this.whole[1] - this.whole[0]);
    const middle = (from + to) / 2;
    // At least a tenth of the screen keeps something to see.
    const low = this.bounds[0] - span * 0.9, high = this.bounds[1] - span * 0.1;
    this.from = span >= whole ? this.bounds[0] - (span - whole) / 2 : Math.min(Math.max(middle - span / 2, low), high);
    this.to = this.from + span;
  }

  fit() {
    this.show(this.bounds[0] - 1e12, this.bounds[1] + 1e12);
  }

  pan(share) {
    this.show(this.from + share * this.span, this.to + share * this.span);
  }

  zoom(factor, at) {
    const pivot = at ?? (this.from + this.to) / 2;
    this.show(pivot - (pivot - this.from) * factor, pivot + (this.to - pivot) * factor);
  }
}

// Where a side's chosen moment lies; null where the side does not have it.
function anchorOf(model, side, align) {
  if (align.at === "pass") return 0;
  if (align.at === "ubatch") return side.ubatches.find((u) => u[0] === align.ubatch)?.[4] ?? null;
  const c = model.columns;
  for (let i = side.starts.from; i < side.starts.to; i++) {
    const ubatch = c.layer_start_ubatch[i];
    if (c.layer_start_layer[i] === align.layer && (ubatch === align.ubatch || ubatch < 0)) return c.layer_start_ns[i];
  }
  return null;
}

function niceStep(span, pixels, spacing) {
  const rough = (span * spacing) / Math.max(pixels, 1), power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough);
}
