// The event of the other arm that does the same: of the same kind, layer and ubatch, and as far along among its like.

function counterpartOf(model, number) {
  const event = describeEvent(model, number), other = model.sides[1 - event.lane.side];
  if (!other) return null;
  const mine = alike(model, [event.lane], event), at = mine.indexOf(number);
  const lanes = other.lanes.filter((lane) => lane.category === event.lane.category);
  const sameDevice = lanes.filter((lane) => lane.device === event.lane.device);
  const found = alike(model, sameDevice.length ? sameDevice : lanes, event);
  return found.length ? found[Math.min(Math.max(at, 0), found.length - 1)] : null;
}

// Numbers of the lanes' events of the event's layer and ubatch; of those with its tensor and name where there are any.
function alike(model, lanes, event) {
  const found = [];
  for (const lane of lanes) {
    for (let i = 0; i < lane.events; i++) {
      if (layerOf(model, lane.signature[i]) === event.layer && ubatchOf(model, lane.first + i) === event.ubatch) found.push(lane.first + i);
    }
  }
  const told = found.map((number) => describeEvent(model, number));
  for (const same of [(one) => one.tensor === event.tensor && one.name === event.name, (one) => one.tensor === event.tensor, (one) => one.name === event.name]) {
    if (told.some(same)) return found.filter((_, i) => same(told[i]));
  }
  return found;
}

function layerOf(model, signature) {
  const layer = model.columns.of_layer[signature];
  return layer < 0 ? null : layer;
}
