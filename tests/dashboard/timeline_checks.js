// What test_timeline_script.py asks of the viewer's functions; appended to them, and run by Node.

const CHECKS = {
  // Statistics of a side's stretch, by label.
  statistics: (model, number, from, to) =>
    Object.fromEntries(sideStatistics(model, model.sides[number], from, to).map((row) => [row.label, row.value])),

  rows: (model) => {
    const lane = model.sides[0].lanes.find((one) => one.category === "compute"), { row, count } = rowsOf(lane);
    return { rows: [...row], count, boxes: [0, 1].map((i) => rowBox({ lane, y: 10, height: 40 }, i)) };
  },

  layouts: (model) => {
    const nothing = { hidden: new Set(), folded: new Set(), pinned: new Set(), scroll: 0, room: 1000 };
    const lay = (changes) => layOut(model, { ...nothing, ...changes }, 1000);
    const names = (layout) => layout.lanes.map((place) => place.lane.label);
    const plain = lay({}), small = lay({ room: 150, scroll: 1e9 }), last = small.lanes.at(-1);
    const pinned = lay({ pinned: new Set([laneKey(model.sides[0].lanes[1])]) });
    return {
      groups: plain.headers.map((one) => one.label ?? ""),
      lanes: names(plain),
      folded: names(lay({ folded: new Set(["0|GPU 1"]) })),
      side: names(lay({ folded: new Set(["0"]) })),
      pinned: pinned.lanes.map((place) => [place.lane.label, place.isPinned])[0],
      small: [small.height, small.mostScroll > 0, last.y + last.height <= small.bodyBottom],
    };
  },

  // Of every event of A: whether its like in B is in B, has its layer, ubatch and name, and leads back to it.
  counterparts: (model) =>
    model.sides[0].lanes.flatMap((lane) =>
      Array.from({ length: lane.events }, (_, i) => {
        const number = lane.first + i, there = counterpartOf(model, number);
        const [one, other] = [number, there].map((each) => describeEvent(model, each));
        const isSame = ["layer", "ubatch", "name"].every((key) => one[key] === other[key]);
        return { back: counterpartOf(model, there) === number, side: other.lane.side, same: isSame };
      }),
    ),

  ends: (model) => {
    const [a, b] = model.sides, [number, phase, tokens, , , end] = b.ubatches[0];
    return {
      first: sinceA(a.first_token_ns, b.first_token_ns, model),
      ubatch: ubatchTexts(model, b, number, phase, tokens, end)[0],
    };
  },

  fit: (model) => {
    const view = new TimeView();
    view.setBounds(model.sides);
    view.fit();
    return [[view.from, view.to], view.whole];
  },
};

const { readFileSync } = await import("fs"), [packed, name, ...numbers] = process.argv.slice(2);
const model = decodeTimeline(new Uint8Array(readFileSync(packed)));
console.log(JSON.stringify(CHECKS[name](model, ...numbers.map(Number))));
