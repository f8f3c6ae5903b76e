// Ties data, view, drawing and controls together; one for each place on the page.

const STATUS_HEIGHT = 44, LEAST_HEIGHT = 280;
const DOCK_HEIGHT = 120, TALL_WINDOW = 700; // where there is room, what is chosen is told below without scrolling

class Viewer {
  constructor(root) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.canvas = this.find("canvas");
    this.painter = new Painter(this.canvas);
    this.state = {
      view: new TimeView(), selected: null, measured: null, pointer: null, query: "", matches: null, matchedKinds: null, nMatching: 0,
      hidden: new Set(), folded: new Set(), pinned: new Set(), scroll: 0,
    };
    this.align = { at: "pass", ubatch: 0, layer: 0 };
    this.measuring = false;
    this.observer = new ResizeObserver(() => this.relayout());
    this.observer.observe(this.find(".stage"));
    this.onResize = () => this.relayout();
    window.addEventListener("resize", this.onResize);
    connectPointer(this);
    connectKeys(this);
    connectBar(this);
  }

  dispose() {
    this.observer.disconnect();
    window.removeEventListener("resize", this.onResize);
    clearTimeout(this.urlTimer);
    clearTimeout(this.windowTimer);
  }

  // New data, or the same data under another theme. The view stays where it is for the same passes.
  update(bytes, host, send) {
    this.send = send;
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
    this.chooseWanted();
    showDetails(this.find(".details"), this.state.model, this.state.selected, (n) => this.goTo(n), () => this.goToOther());
    this.showStatistics();
  }

  startOver() {
    const asked = readUrl();
    this.align = asked.align ?? { at: "pass", ubatch: 0, layer: 0 };
    this.choose(null);
    fillAlignment(this);
    this.applyAlignment();
    const first = asked.view ?? this.state.model.header.first_view;
    if (first) this.state.view.show(first[0], first[1]);
    else this.state.view.fit();
    this.wanted = asked.at;
  }

  // What the address asks to be chosen: the event that lies exactly there, as soon as it has been sent, else the stretch.
  chooseWanted() {
    if (!this.wanted) return;
    const { model } = this.state, { side: number, span } = this.wanted, side = model.sides[number ?? 0];
    const found = number === null || !side ? null : eventAt(side, span);
    if (found !== null) this.goTo(found);
    else if (side) this.choose(span.map((time) => time - (number === null ? 0 : side.offset)));
    if (found !== null || !side || !isCutAway(side, ...span)) this.wanted = null;
  }

  // The chosen event or stretch as the address has it; null: none.
  chosen() {
    const { selected, measured, model } = this.state, event = selected === null ? null : describeEvent(model, selected);
    if (this.wanted) return this.wanted.text;
    if (event) return `${"ab"[event.lane.side]}:${event.start}~${event.end}`;
    return measured && `${Math.round(Math.min(...measured))}~${Math.round(Math.max(...measured))}`;
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
    const { state } = this;
    state.layout = layOut(state.model, { ...state, room: this.room() }, width);
    state.scroll = Math.min(state.scroll, state.layout.mostScroll);
    this.painter.resize(width, state.layout.height);
    this.root.dataset.lanes = state.layout.lanes.map((p) => `${p.lane.label}@${p.y}+${p.height}`).join("|");
    this.paint();
  }

  // What the window leaves below the timeline's top, when the page is not scrolled, less a line for its status.
  room() {
    const page = document.querySelector("[data-testid=stMain]"), top = this.find(".stage").getBoundingClientRect().top + (page?.scrollTop ?? 0);
    const dock = window.innerHeight < TALL_WINDOW ? 0 : DOCK_HEIGHT;
    return Math.max(window.innerHeight - top - STATUS_HEIGHT - dock, LEAST_HEIGHT);
  }

  scrollBy(pixels) {
    const { state } = this, now = Math.min(Math.max(state.scroll + pixels, 0), state.layout.mostScroll);
    if (now === state.scroll) return;
    state.scroll = now;
    this.relayout();
  }

  // Fold a side or a group; pin a lane above all sides, or take it back.
  toggle(set, key) {
    if (!set.delete(key)) set.add(key);
    this.relayout();
  }

  // The stretch whose statistics are shown, on the common clock; null: none.
  choose(span) {
    this.state.measured = span;
    this.showStatistics();
    this.changed();
  }

  showStatistics() {
    const makeArm = (span) => {
      this.send("arm", span);
      this.choose(null); // from now on it is drawn as an arm
    };
    showStatistics(this.find(".statistics"), this.state.model, this.state.measured, makeArm);
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
    this.urlTimer = setTimeout(() => writeUrl(state.view, this.align, this.chosen()), 250);
    if (this.tipIsOld && state.pointer) this.showTip(state.pointer.x, state.pointer.y);
    this.tipIsOld = false;
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
      this.send("window", wanted);
    }, 350);
  }

  select(number) {
    this.state.selected = number;
    showDetails(this.find(".details"), this.state.model, number, (n) => this.goTo(n), () => this.goToOther());
    this.showFound();
    this.changed();
  }

  // Select an event and bring it into view if it is outside.
  goTo(number) {
    const { view, model } = this.state, event = describeEvent(model, number), offset = model.sides[event.lane.side].offset;
    const middle = (event.start + event.end) / 2 - offset;
    if (middle < view.from || middle > view.to) view.show(middle - view.span / 2, middle + view.span / 2);
    this.uncover(event.lane);
    this.select(number);
  }

  // Unfold and scroll to a lane, so that its event can be seen.
  uncover(lane) {
    const { state } = this, side = state.model.sides[lane.side], group = groupsOf(side).find((one) => one.lanes.includes(lane));
    const wasFolded = [state.folded.delete(`${side.number}`), state.folded.delete(group.key)].some(Boolean);
    if (state.hidden.delete(lane.category)) this.showLegend();
    if (wasFolded || !state.layout.lanes.some((p) => p.lane === lane)) this.relayout();
    const { layout } = state, place = layout.lanes.find((p) => p.lane === lane);
    if (place.isPinned) return;
    if (place.y < layout.bodyTop) this.scrollBy(place.y - layout.bodyTop);
    else if (place.y + place.height > layout.bodyBottom) this.scrollBy(place.y + place.height - layout.bodyBottom);
  }

  // To the same layer's event in the other arm.
  goToOther() {
    const { model, selected } = this.state;
    if (selected === null || model.sides.length < 2) return;
    const other = counterpartOf(model, selected), event = describeEvent(model, selected), { title } = model.sides[1 - event.lane.side];
    this.find(".missing").textContent = other === null ? `${title} has no ${model.header.categories[event.lane.category]} of this layer and ubatch here.` : "";
    if (other !== null) this.goTo(other);
  }

  // What zooming by keys leaves in its place: the pointer, else the chosen event, else the middle.
  pivot() {
    const { pointer, layout, view, selected, model } = this.state;
    if (pointer) return view.from + ((pointer.x - layout.left) / layout.width) * view.span;
    if (selected === null) return undefined;
    const event = describeEvent(model, selected), middle = (event.start + event.end) / 2 - model.sides[event.lane.side].offset;
    return middle >= view.from && middle <= view.to ? middle : undefined;
  }

  // Calls act(lane, key of its group) for the lane of the chosen event.
  ofSelected(act) {
    const { selected, model } = this.state;
    if (selected === null) return;
    const { lane } = describeEvent(model, selected), side = model.sides[lane.side], groups = groupsOf(side);
    act(lane, groups.length > 1 ? groups.find((one) => one.lanes.includes(lane)).key : `${side.number}`);
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
    const { layout, view } = this.state, place = layout ? laneAt(layout, y) : null;
    if (!place || x < layout.left) return null;
    const scale = layout.width / view.span, { lane, side } = place, slack = 3 / scale;
    const time = view.from + (x - layout.left) / scale + side.offset, merged = this.mergedAround(lane, time, scale);
    const isHere = (i) => {
      const { top, tall } = rowBox(place, i);
      return y >= top - 1 && y <= top + tall + 1;
    };
    for (let i = firstAbove(lane.start, time) - 1, steps = 0; i >= 0 && steps < 500 && lane.latest[i] >= time - slack; i--, steps++) {
      if (lane.end[i] >= time - slack && isHere(i)) return { number: lane.first + i, merged };
    }
    const next = firstAbove(lane.start, time);
    if (next < lane.events && lane.start[next] - time <= slack) return { number: lane.first + next, merged };
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
}
