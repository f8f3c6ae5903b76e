// Ties data, view, drawing and controls together; one for each place on the page.

class Viewer {
  constructor(root) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.canvas = this.find("canvas");
    this.painter = new Painter(this.canvas);
    this.state = { view: new TimeView(), selected: null, measured: null, pointer: null, matches: null, matchedKinds: null };
    this.hidden = new Set();
    this.align = { at: "pass", ubatch: 0, layer: 0 };
    this.measuring = false;
    this.observer = new ResizeObserver(() => this.relayout());
    this.observer.observe(this.find(".stage"));
    connectPointer(this);
    connectKeys(this);
    connectBar(this);
  }

  dispose() {
    this.observer.disconnect();
    clearTimeout(this.urlTimer);
    clearTimeout(this.windowTimer);
  }

  // New data, or the same data under another theme. The view stays where it is for the same passes.
  update(bytes, host, sendWindow) {
    this.sendWindow = sendWindow;
    const isNew = bytes !== this.bytes;
    if (isNew) {
      const begin = performance.now(), model = decodeTimeline(bytes);
      this.root.dataset.decodeMs = (performance.now() - begin).toFixed(1);
      const samePasses = model.header.key === this.state.model?.header.key;
      this.bytes = bytes;
      Object.assign(this.state, { model, selected: null, haystacks: null });
      this.asked = null;
      if (samePasses) this.applyAlignment();
      else this.startOver();
    }
    this.state.theme = readTheme(host, this.state.model.header.palette);
    this.showLegend();
    this.search(this.find(".search").value);
    this.relayout();
    showDetails(this.find(".details"), this.state.model, this.state.selected, (n) => this.goTo(n));
  }

  startOver() {
    const asked = readUrl();
    this.align = asked.align ?? { at: "pass", ubatch: 0, layer: 0 };
    this.state.measured = null;
    fillAlignment(this);
    this.applyAlignment();
    const first = asked.view ?? this.state.model.header.first_view;
    if (first) this.state.view.show(first[0], first[1]);
    else this.state.view.fit();
  }

  applyAlignment() {
    const { model, view } = this.state;
    const anchors = model.sides.map((side) => anchorOf(model, side, this.align));
    model.sides.forEach((side, i) => (side.offset = anchors[i] ?? 0));
    view.setBounds(model.sides);
    const missing = model.sides.filter((_, i) => anchors[i] === null).map((side) => side.title);
    this.find(".missing").textContent = missing.length ? `${missing.join(" and ")} has no such start here: aligned at the pass.` : "";
  }

  alignAt(align) {
    this.align = align;
    const span = this.state.view.span;
    this.applyAlignment();
    if (align.at === "pass") this.state.view.fit();
    else this.state.view.show(-span * 0.1, span * 0.9);
    this.changed();
  }

  relayout() {
    if (!this.state.model) return;
    const width = Math.floor(this.find(".stage").clientWidth);
    if (width < 60) return;
    this.state.layout = layOut(this.state.model, this.hidden, width);
    this.painter.resize(width, this.state.layout.height);
    this.paint();
  }

  changed() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.paint();
    });
  }

  paint() {
    const { state } = this;
    if (!state.layout || !state.theme) return;
    const begin = performance.now(), counts = this.painter.draw(state);
    this.root.dataset.drawMs = (performance.now() - begin).toFixed(2);
    this.root.dataset.view = `${Math.round(state.view.from)}~${Math.round(state.view.to)}`;
    this.find(".status").textContent = statusText(state, counts);
    clearTimeout(this.urlTimer);
    this.urlTimer = setTimeout(() => writeUrl(state.view, this.align), 250);
    if (counts.shares) this.askForWindow();
  }

  // Only for sides too large to send whole: ask once the view rests, and only where much of it has no events.
  askForWindow() {
    const { view, model } = this.state;
    const outside = model.sides.some((side) => {
      const from = Math.max(view.from + side.offset, side.extent[0]), to = Math.min(view.to + side.offset, side.extent[1]);
      const window = side.window[1] - side.window[0];
      return to - from < window && (from < side.window[0] || to > side.window[1]);
    });
    clearTimeout(this.windowTimer);
    if (!outside) return;
    const wanted = model.sides.map((side) => [Math.round(view.from + side.offset), Math.round(view.to + side.offset)]);
    if (JSON.stringify(wanted) === this.asked) return;
    this.windowTimer = setTimeout(() => {
      this.asked = JSON.stringify(wanted);
      this.sendWindow(wanted);
    }, 350);
  }

  select(number) {
    this.state.selected = number;
    showDetails(this.find(".details"), this.state.model, number, (n) => this.goTo(n));
    this.changed();
  }

  // Select an event and bring it into view if it is outside.
  goTo(number) {
    const { view, model } = this.state, event = describeEvent(model, number), offset = model.sides[event.lane.side].offset;
    const middle = (event.start + event.end) / 2 - offset;
    if (middle < view.from || middle > view.to) view.show(middle - view.span / 2, middle + view.span / 2);
    this.select(number);
  }

  zoomToSelected() {
    const { selected, model, view } = this.state;
    if (selected === null) return view.fit();
    const event = describeEvent(model, selected), offset = model.sides[event.lane.side].offset;
    const length = Math.max(event.end - event.start, 10);
    view.show(event.start - offset - length * 2, event.end - offset + length * 2);
  }

  // The event at a point of the canvas: the one that covers it, else one within three pixels.
  pick(x, y) {
    const { layout, view, model } = this.state;
    const place = layout?.lanes.find((p) => y >= p.y && y <= p.y + p.height);
    if (!place || x < layout.left) return null;
    const scale = layout.width / view.span, { lane, side } = place, slack = 3 / scale;
    const time = view.from + (x - layout.left) / scale + side.offset;
    for (let i = firstAbove(lane.start, time) - 1, steps = 0; i >= 0 && steps < 500 && lane.latest[i] >= time - slack; i--, steps++) {
      if (lane.end[i] >= time - slack) return { number: lane.first + i, merged: this.mergedAround(lane, time, scale) };
    }
    const next = firstAbove(lane.start, time);
    if (next < lane.events && lane.start[next] - time <= slack) return { number: lane.first + next, merged: this.mergedAround(lane, time, scale) };
    return null;
  }

  mergedAround(lane, time, scale) {
    const half = 0.5 / scale;
    return firstAbove(lane.start, time + half) - firstAbove(lane.start, time - half);
  }

  showTip(x, y) {
    const tip = this.find(".tip"), hit = this.pick(x, y);
    tip.hidden = !hit;
    if (!hit) return;
    const event = describeEvent(this.state.model, hit.number);
    const size = event.bytes === null ? "" : ` · ${formatBytes(event.bytes)}`;
    tip.replaceChildren(element("b", "", event.name ?? event.lane.label));
    tip.append(element("span", "", `${event.layer === null ? "" : ` · layer ${event.layer}`} · ${formatTime(event.end - event.start)}${size}`));
    if (hit.merged > 1) tip.append(element("em", "", `${plural(hit.merged, "event")} share this pixel: zoom in`));
    const width = tip.offsetWidth, limit = this.state.layout.left + this.state.layout.width;
    tip.style.left = `${Math.min(x + 14, limit - width - 4)}px`;
    tip.style.top = `${y + 18}px`;
  }

  search(query) {
    const { state } = this, { model } = state;
    const kinds = [...query.matchAll(/kind:(\w+)/gi)].map((found) => found[1].toLowerCase()), rest = query.replace(/kind:\w*/gi, "").trim();
    if (rest) state.haystacks ??= haystacks(model);
    const fits = matcher(rest);
    state.matches = rest ? Uint8Array.from(state.haystacks, (text) => (fits(text) ? 1 : 0)) : null;
    state.matchedKinds = kinds.length ? new Set(kinds) : null;
    state.nMatching = 0;
    if (state.matches || state.matchedKinds) this.eachMatch(() => state.nMatching++);
    this.find(".found").textContent = query.trim() ? plural(state.nMatching, "match").replace("matchs", "matches") : "";
    this.changed();
  }

  eachMatch(visit) {
    const { matches, matchedKinds, model } = this.state;
    for (const lane of model.sides.flatMap((side) => side.lanes)) {
      if (this.hidden.has(lane.category) || (matchedKinds && !matchedKinds.has(lane.category))) continue;
      for (let i = 0; i < lane.events; i++) if (!matches || matches[lane.signature[i]]) visit(lane.first + i);
    }
  }

  nextMatch(step) {
    if (!this.state.matches && !this.state.matchedKinds) return;
    let first = null, last = null, before = null, after = null;
    const now = this.state.selected ?? -1;
    this.eachMatch((number) => {
      first ??= number;
      last = number;
      if (number < now) before = number;
      if (number > now) after ??= number;
    });
    const target = step > 0 ? after ?? first : before ?? last;
    if (target !== null) this.goTo(target);
  }

  // Neighbour in the lane (arrows left and right) or the nearest event in the lane above or below.
  step(sideways, down) {
    const { state } = this, places = state.layout.lanes.filter((p) => p.lane.events);
    if (!places.length) return;
    const at = places.findIndex(({ lane }) => state.selected !== null && state.selected >= lane.first && state.selected < lane.first + lane.events);
    if (at < 0) return this.goTo(places[0].lane.first);
    const { lane } = places[at], row = state.selected - lane.first;
    if (sideways) return this.goTo(lane.first + Math.min(Math.max(row + sideways, 0), lane.events - 1));
    const other = places[Math.min(Math.max(at + down, 0), places.length - 1)];
    const time = lane.start[row] - places[at].side.offset + other.side.offset;
    this.goTo(other.lane.first + Math.min(firstAbove(other.lane.start, time, true), other.lane.events - 1));
  }

  showLegend() {
    const { model, theme } = this.state, legend = this.find(".legend"), shown = new Map();
    for (const lane of model.sides.flatMap((side) => side.lanes)) shown.set(lane.category, model.header.categories[lane.category]);
    legend.replaceChildren();
    for (const [category, text] of shown) {
      const chip = element("button", "chip", text);
      chip.type = "button";
      chip.title = "Show or hide";
      chip.style.setProperty("--colour", theme.colours[category]);
      chip.setAttribute("aria-pressed", String(!this.hidden.has(category)));
      chip.addEventListener("click", () => {
        if (!this.hidden.delete(category)) this.hidden.add(category);
        chip.setAttribute("aria-pressed", String(!this.hidden.has(category)));
        this.relayout();
      });
      legend.append(chip);
    }
    const first = model.sides.flatMap((side) => side.marks)[0];
    if (first) {
      const n = model.sides.reduce((sum, side) => sum + side.marks.length, 0);
      const chip = linkTo(`${plural(n, "pair")} out of order`, () => this.goTo(first.second ?? first.first));
      chip.classList.add("disorder");
      chip.style.setProperty("--colour", theme.colours.exposed);
      legend.append(chip);
    }
    if (shown.has("h2d")) {
      const exposed = element("span", "exposed", "exposed copy (nothing computes meanwhile)");
      exposed.style.setProperty("--colour", theme.colours.exposed);
      legend.append(exposed);
    }
  }
}
