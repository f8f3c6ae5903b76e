// Mouse, touch, keys, the bar of controls, and the address.

function connectPointer(viewer) {
  const { canvas, state } = viewer, held = new Map();
  let drag = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const timeAt = (x) => state.view.from + ((x - state.layout.left) / state.layout.width) * state.view.span;
  const centreOn = (x) => {
    const { whole, span } = state.view, middle = whole[0] + ((x - state.layout.left) / state.layout.width) * (whole[1] - whole[0]);
    state.view.show(middle - span / 2, middle + span / 2);
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (!state.layout) return;
    canvas.setPointerCapture(event.pointerId);
    const at = place(event);
    held.set(event.pointerId, at);
    const onStrip = at.y >= state.layout.strip.top;
    const onLabel = !onStrip && at.x < state.layout.left;
    const kind = onStrip ? "strip" : onLabel ? "label" : event.shiftKey || viewer.measuring ? "measure" : "pan";
    drag = { kind, at, moved: false, from: state.view.from, to: state.view.to, scroll: state.scroll, spread: spread(held) };
    if (onStrip) centreOn(at.x);
    if (kind === "measure") state.measured = [timeAt(at.x), timeAt(at.x)];
    viewer.changed();
  });

  canvas.addEventListener("pointermove", (event) => {
    if (!state.layout) return;
    const at = place(event);
    if (held.has(event.pointerId)) held.set(event.pointerId, at);
    state.pointer = at.x >= state.layout.left && at.y < state.layout.strip.top ? at : null;
    if (drag && held.size === 2) pinch();
    else if (drag && held.size === 1) follow(at);
    else viewer.showTip(at.x, at.y);
    canvas.style.cursor = labelAt(state.layout, at.x, at.y) ? "pointer" : viewer.measuring ? "crosshair" : "";
    viewer.changed();
  });

  const release = (event) => {
    const at = place(event);
    held.delete(event.pointerId);
    if (drag && drag.kind === "measure" && drag.moved) viewer.choose(state.measured);
    else if (drag && !drag.moved && drag.kind !== "strip" && event.type === "pointerup") click(at);
    if (held.size === 0) drag = null;
    else if (drag) holdOn([...held.values()][0]);
    viewer.changed();
  };
  // A finger that stays after two have zoomed goes on from what they left.
  const holdOn = (at) => {
    drag = { ...drag, kind: "pan", at, moved: true, from: state.view.from, to: state.view.to, scroll: state.scroll, spread: null };
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    state.pointer = null;
    viewer.find(".tip").hidden = true;
    viewer.changed();
  });
  canvas.addEventListener("dblclick", (event) => {
    const hit = viewer.pick(place(event).x, place(event).y);
    if (!hit) return;
    if (hit.merged > 1) state.view.zoom(0.1, timeAt(place(event).x));
    else viewer.zoomToSelected();
    viewer.changed();
  });
  // A page that scrolls keeps its wheel until the timeline has been clicked; with Ctrl it zooms at once.
  canvas.addEventListener("wheel", (event) => {
    const focused = viewer.root.getRootNode().activeElement === canvas;
    if (!state.layout || !(focused || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const at = place(event);
    if (at.x < state.layout.left || event.shiftKey) viewer.scrollBy(event.deltaY || event.deltaX);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) state.view.pan(event.deltaX / state.layout.width);
    else state.view.zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY)) * 0.0022), timeAt(Math.max(at.x, state.layout.left)));
    viewer.changed();
  }, { passive: false });

  // A label folds or pins, a ubatch's name chooses its stretch, anything else is the event there or none.
  function click(at) {
    const label = labelAt(state.layout, at.x, at.y), ubatch = ubatchAt(at);
    if (drag.kind === "measure") viewer.choose(null);
    if (label?.header) viewer.toggle(state.folded, label.header.key);
    else if (label) viewer.toggle(state.pinned, laneKey(label.lane));
    else if (ubatch) viewer.choose(ubatch);
    else viewer.select(viewer.pick(at.x, at.y)?.number ?? null);
  }

  function ubatchAt(at) {
    const header = state.layout.headers.find((one) => one.kind === "side" && at.y >= one.y && at.y < one.y + one.height);
    if (!header) return null;
    const time = timeAt(at.x) + header.side.offset, found = header.side.ubatches.find((u) => u[4] <= time && time < u[5]);
    return found ? [found[4] - header.side.offset, found[5] - header.side.offset] : null;
  }

  function follow(at) {
    if (Math.abs(at.x - drag.at.x) > 3) drag.moved = true;
    if (drag.kind === "strip") centreOn(at.x);
    else if (drag.kind === "measure") state.measured = [state.measured[0], timeAt(at.x)];
    else if (drag.moved && drag.kind === "label") viewer.scrollBy(drag.scroll + drag.at.y - at.y - state.scroll);
    else if (drag.moved) {
      viewer.scrollBy(drag.scroll + drag.at.y - at.y - state.scroll);
      const shift = ((drag.at.x - at.x) / state.layout.width) * (drag.to - drag.from);
      state.view.show(drag.from + shift, drag.to + shift);
    }
  }

  function pinch() {
    const now = spread(held);
    if (drag.spread && now) state.view.zoom(drag.spread / now, timeAt([...held.values()].reduce((sum, p) => sum + p.x, 0) / 2));
    drag.spread = now;
    drag.moved = true;
  }
}

function spread(held) {
  const [a, b] = [...held.values()];
  return b ? Math.max(Math.hypot(a.x - b.x, a.y - b.y), 1) : null;
}

function connectKeys(viewer) {
  const { view } = viewer.state;
  const zoom = (factor) => view.zoom(factor, viewer.pivot());
  const actions = {
    w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => view.pan(-0.2), d: () => view.pan(0.2),
    "+": () => zoom(0.5), "-": () => zoom(2), 0: () => view.fit(), Home: () => view.fit(),
    f: () => viewer.zoomToSelected(), m: () => viewer.toggleMeasuring(), "/": () => viewer.find(".search").focus(),
    n: () => viewer.nextMatch(1), p: () => viewer.nextMatch(-1), o: () => viewer.goToOther(),
    l: () => viewer.ofSelected((lane) => viewer.toggle(viewer.state.pinned, laneKey(lane))),
    g: () => viewer.ofSelected((lane, group) => viewer.toggle(viewer.state.folded, group)),
    PageUp: () => viewer.scrollBy(-120), PageDown: () => viewer.scrollBy(120),
    ArrowLeft: () => viewer.step(-1, 0), ArrowRight: () => viewer.step(1, 0), ArrowUp: () => viewer.step(0, -1), ArrowDown: () => viewer.step(0, 1),
    Escape: () => {
      viewer.choose(null);
      viewer.select(null);
    },
  };
  viewer.canvas.addEventListener("keydown", (event) => {
    const act = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || !viewer.state.layout || event.ctrlKey || event.metaKey || event.altKey) return;
    // Streamlit has keys of its own, such as R to run again.
    event.preventDefault();
    event.stopPropagation();
    act();
    viewer.tipIsOld = true;
    viewer.changed();
  });
}

function connectBar(viewer) {
  const { find } = viewer, { view } = viewer.state, keys = find(".keys");
  const actions = {
    fit: () => view.fit(), in: () => view.zoom(0.5), out: () => view.zoom(2),
    measure: () => viewer.toggleMeasuring(), next: () => viewer.nextMatch(1), previous: () => viewer.nextMatch(-1),
    help: () => (keys.hidden = !keys.hidden),
  };
  for (const button of viewer.root.querySelectorAll("button[data-do]")) {
    button.addEventListener("click", () => {
      actions[button.dataset.do]();
      viewer.changed();
    });
  }
  viewer.toggleMeasuring = () => {
    viewer.measuring = !viewer.measuring;
    find("[data-do=measure]").setAttribute("aria-pressed", String(viewer.measuring));
    viewer.canvas.style.cursor = viewer.measuring ? "crosshair" : "";
  };
  const search = find(".search");
  search.addEventListener("input", () => viewer.search(search.value));
  search.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") viewer.nextMatch(event.shiftKey ? -1 : 1);
  });
  for (const name of [".align", ".ubatch", ".layer"]) {
    find(name).addEventListener("change", () => {
      viewer.alignAt({ at: find(".align").value, ubatch: Number(find(".ubatch").value), layer: Number(find(".layer").value) });
      showAlignment(viewer);
    });
  }
}

function fillAlignment(viewer) {
  const { model } = viewer.state, { find, align } = viewer;
  const numbers = (values) => [...new Set(values)].sort((a, b) => a - b);
  const ubatches = numbers(model.sides.flatMap((side) => side.ubatches.map((u) => u[0])));
  const layers = numbers(model.columns.layer_start_layer);
  const phases = new Map(model.sides.flatMap((side) => side.ubatches.map((u) => [u[0], u[1]])));
  fillOptions(find(".ubatch"), ubatches, (n) => `${phases.get(n) === "decode" ? "decode" : "ubatch"} ${n}`, align.ubatch);
  fillOptions(find(".layer"), layers, (n) => `layer ${n}`, align.layer);
  find(".field").hidden = !ubatches.length && !layers.length;
  find("option[value=ubatch]").disabled = !ubatches.length;
  find("option[value=layer]").disabled = !layers.length;
  find(".align").value = align.at;
  showAlignment(viewer);
}

function fillOptions(select, numbers, label, chosen) {
  select.replaceChildren(...numbers.slice(0, 5000).map((number) => {
    const option = element("option", "", label(number));
    option.value = String(number);
    option.selected = number === chosen;
    return option;
  }));
}

function showAlignment({ find, align }) {
  find(".ubatch").hidden = align.at === "pass";
  find(".layer").hidden = align.at !== "layer";
}

// The address keeps what is on the screen, so that it can be sent to somebody; nothing is loaded anew.
function readUrl() {
  const query = new URLSearchParams(window.location.search), view = /^(-?\d{1,15})~(-?\d{1,15})$/.exec(query.get("view") ?? "");
  const align = /^(pass|ubatch|layer)(?::(\d{1,9}))?(?::(\d{1,9}))?$/.exec(query.get("align") ?? "");
  const at = /^(?:([ab]):)?(-?\d{1,15})~(-?\d{1,15})$/.exec(query.get("at") ?? "");
  return {
    at: at && { text: at[0], side: at[1] ? "ab".indexOf(at[1]) : null, span: [Number(at[2]), Number(at[3])] },
    view: view && Number(view[1]) < Number(view[2]) ? [Number(view[1]), Number(view[2])] : null,
    align: align && { at: align[1], ubatch: Number(align[2] ?? 0), layer: Number(align[3] ?? 0) },
  };
}

function writeUrl(view, align, chosen) {
  const url = new URL(window.location.href);
  url.searchParams.set("view", `${Math.round(view.from)}~${Math.round(view.to)}`);
  if (align.at === "pass") url.searchParams.delete("align");
  else url.searchParams.set("align", `${align.at}:${align.ubatch}${align.at === "layer" ? `:${align.layer}` : ""}`);
  if (chosen) url.searchParams.set("at", chosen);
  else url.searchParams.delete("at");
  if (url.href !== window.location.href) window.history.replaceState(window.history.state, "", url);
}
