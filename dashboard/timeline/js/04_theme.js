// Colours and fonts, from the page's own theme; the palette comes with the data (dashboard/figures/style.py).

function readTheme(host, palette) {
  const style = getComputedStyle(host);
  const variable = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  const background = variable("--st-background-color", "#ffffff");
  const dark = luminance(background) < 0.5;
  return {
    dark, background,
    text: variable("--st-text-color", dark ? "#fafafa" : "#31333f"),
    panel: variable("--st-secondary-background-color", dark ? "#262730" : "#f0f2f6"),
    border: variable("--st-border-color", dark ? "#41444e" : "#d5d7dd"),
    accent: variable("--st-primary-color", "#0072b2"),
    font: variable("--st-font", "sans-serif"),
    colours: palette[dark ? "dark" : "light"],
  };
}

const LUMINANCES = new Map();

function luminance(colour) {
  if (!LUMINANCES.has(colour)) LUMINANCES.set(colour, measureLuminance(colour));
  return LUMINANCES.get(colour);
}

function measureLuminance(colour) {
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = colour;
  const hex = /^#(..)(..)(..)/.exec(probe.fillStyle);
  const [r, g, b] = hex ? hex.slice(1).map((part) => parseInt(part, 16)) : [255, 255, 255];
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}

// Diagonal lines over the copy's own colour: exposed copy is told by pattern and edge, not by colour alone.
function hatch(context, colour) {
  const tile = document.createElement("canvas"), size = 6, ratio = window.devicePixelRatio || 1;
  tile.width = tile.height = size * ratio;
  const pen = tile.getContext("2d");
  pen.scale(ratio, ratio);
  pen.strokeStyle = colour;
  pen.lineWidth = 1.6;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift - 1, size + 1);
    pen.lineTo(shift + size + 1, -1);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}
