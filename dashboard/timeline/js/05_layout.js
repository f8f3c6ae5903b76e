// Where everything goes, in CSS pixels: the axis, then each side with its lanes, then the overview strip.

const LABEL_WIDTH = 148, AXIS_HEIGHT = 26, TITLE_HEIGHT = 26, LANE_HEIGHT = 26, THIN_LANE = 14, LANE_GAP = 3;
const SIDE_GAP = 14, STRIP_HEIGHT = 40, STRIP_GAP = 12;

function layOut(model, hidden, width) {
  const labelWidth = width < 620 ? 92 : LABEL_WIDTH;
  const layout = { labelWidth, left: labelWidth, width: Math.max(50, width - labelWidth), lanes: [], sides: [] };
  let y = AXIS_HEIGHT;
  for (const side of model.sides) {
    const top = y;
    y += TITLE_HEIGHT;
    for (const lane of side.lanes) {
      if (hidden.has(lane.category)) continue;
      const height = lane.category === "wait" || lane.category === "api" ? THIN_LANE : LANE_HEIGHT;
      layout.lanes.push({ lane, side, y, height });
      y += height + LANE_GAP;
    }
    layout.sides.push({ side, top, bottom: y });
    y += SIDE_GAP;
  }
  layout.strip = { top: y - SIDE_GAP + STRIP_GAP, height: STRIP_HEIGHT };
  layout.height = layout.strip.top + STRIP_HEIGHT + 2;
  return layout;
}
