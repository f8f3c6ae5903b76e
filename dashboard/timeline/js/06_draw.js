// Draws what the view shows: the axis, each side's ground and ubatches, then lanes (06_lanes.js) and what lies over them.

class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  // Returns how many events were drawn one by one, and how many share how many columns.
  draw(state) {
    const { model, view, layout, theme } = state, c = this.context;
    if (this.hatchColour !== theme.colours.exposed) this.hatch = hatch(c, theme.colours.exposed);
    this.hatchColour = theme.colours.exposed;
    this.counts = { drawn: 0, merged: 0, columns: 0, shares: false };
    c.clearRect(0, 0, layout.left + layout.width, layout.height);
    c.textBaseline = "middle";
    this.scale = layout.width / view.span;
    this.drawAxis(state);
    this.inBody(state, () => {
      for (const place of layout.sides) this.drawSide(place, state);
      for (const header of layout.headers) if (header.isFolded) this.drawFolded(header, state);
      for (const place of layout.lanes) if (!place.isPinned && isInBody(layout, place)) this.drawLane(place, state);
      this.drawHeaders(state);
      this.drawEnds(state);
    });
    for (const place of layout.lanes) if (place.isPinned) this.drawLane(place, state);
    this.drawLabels(state);
    this.drawStrip(state);
    this.drawMarks(state);
    return this.counts;
  }

  x(time, state) {
    return state.layout.left + (time - state.view.from) * this.scale;
  }

  font(theme, size = 12, weight = "") {
    this.context.font = `${weight} ${size}px ${theme.font}`.trim();
  }

  inside(state, top, height, paint) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(state.layout.left, top, state.layout.width, height);
    c.clip();
    paint(c);
    c.restore();
  }

  // Between pinned lanes and strip, labels too.
  inBody({ layout }, paint) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(0, layout.bodyTop, layout.left + layout.width, layout.bodyBottom - layout.bodyTop + 1);
    c.clip();
    paint();
    c.restore();
  }

  drawAxis(state) {
    const { view, layout, theme } = state, c = this.context;
    const step = niceStep(view.span, layout.width, 110), first = Math.ceil(view.from / step) * step;
    const largest = Math.max(Math.abs(first), Math.abs(Math.floor(view.to / step) * step), step);
    this.font(theme, 11);
    c.textAlign = "center";
    for (let i = 0, time = first; time <= view.to; i++, time = first + i * step) {
      const x = Math.round(this.x(time, state)) + 0.5, zero = Math.abs(time) < step / 2;
      c.strokeStyle = theme.text;
      c.globalAlpha = zero ? 0.5 : 0.1;
      c.beginPath();
      c.moveTo(x, AXIS_HEIGHT - 5);
      c.lineTo(x, layout.bodyBottom);
      c.stroke();
      c.globalAlpha = 0.75;
      c.fillStyle = theme.text;
      if (x > layout.left + 4 && x < layout.left + layout.width - 20) c.fillText(zero ? "0" : formatTick(time, step, largest), x, 10);
    }
    c.globalAlpha = 1;
  }

  drawSide(place, state) {
    const { side, top, bottom } = place, { layout, theme, view } = state, c = this.context;
    c.fillStyle = theme.panel;
    c.globalAlpha = 0.55;
    c.fillRect(0, top, layout.left + layout.width, bottom - top);
    c.globalAlpha = 1;
    this.inside(state, top, bottom - top, () => {
      c.textAlign = "left";
      let free = -Infinity;
      const pill = this.firstToken(side, state);
      const isFree = (from, to) => !pill || to < pill.left - 4 || from > pill.right + 4;
      this.font(theme, 11);
      side.ubatches.forEach(([number, phase, tokens, , start, end], i) => {
        const from = this.x(start - side.offset, state), to = this.x(end - side.offset, state);
        if (to < layout.left || from > layout.left + layout.width || to - from < 3) return;
        c.fillStyle = theme.text;
        c.globalAlpha = i % 2 ? 0.03 : 0.075;
        c.fillRect(from, top, to - from, bottom - top);
        const texts = ubatchTexts(state.model, side, number, phase, tokens, end), at = Math.max(from, layout.left) + 5;
        const ends = (one) => at + c.measureText(one).width;
        const text = texts.find((one) => ends(one) + 4 < Math.min(to, layout.left + layout.width) && isFree(at, ends(one)));
        c.globalAlpha = 0.85;
        if (at > free && text) {
          c.fillText(text, at, top + TITLE_HEIGHT / 2);
          free = at + c.measureText(text).width;
        }
        c.globalAlpha = 1;
      });
    });
  }
}
