// Latency of each length band over the last 15 minutes, as lines on a logarithmic axis.
import { colour, made } from "./picture.js";

const MINUTES = 15;
const LEFT = 62;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 8;

// Draws one latency. points: the history; field: the latency's name in it; colours: set index by band.
export function drawLines(svg, points, field, colours) {
  const width = svg.clientWidth;
  const height = svg.clientHeight;
  if (width === 0) return;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const values = points.flatMap((point) => point.bands.map((band) => band[field])).filter((value) => value !== null);
  if (values.length === 0) {
    const why = points.length ? "No requests in the last 15 minutes." : "The first values appear 30 s after startup.";
    svg.replaceChildren(made("text", { x: LEFT, y: height / 2, class: "note" }, why));
    return;
  }
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))));
  const x = (seconds) => LEFT + (1 - seconds / (60 * MINUTES)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (Math.log10(value) - low) / (high - low)) * (height - TOP - BOTTOM);
  const parts = [];
  for (let power = low; power <= high; power += 1) {
    const place = y(10 ** power);
    parts.push(made("line", { x1: LEFT, x2: width - RIGHT, y1: place, y2: place, class: "rule" }));
    parts.push(made("text", { x: LEFT - 6, y: place + 4, "text-anchor": "end", class: "note" }, seconds(10 ** power)));
  }
  for (const minutes of [15, 10, 5, 0]) {
    const anchor = minutes === 0 ? "end" : minutes === 15 ? "start" : "middle";
    const text = minutes === 0 ? "now" : `−${minutes} min`;
    parts.push(made("text", { x: x(60 * minutes), y: height - 5, "text-anchor": anchor, class: "note" }, text));
  }
  for (const [index, name] of points.at(-1).bands.map((band) => band.length_band).entries()) {
    let path = "";
    let drawing = false;
    for (const point of points) {
      const value = point.bands[index][field];
      // An interval without requests is a gap.
      if (value === null) drawing = false;
      else {
        const place = `${x(point.seconds_ago).toFixed(1)} ${y(value).toFixed(1)}`;
        // A single interval would be a line of zero length.
        path += drawing ? `L${place}` : `M${place}h0.01`;
        if (!drawing) path += `M${place}`;
        drawing = true;
      }
    }
    parts.push(made("path", { d: path, class: `line ${colour(colours.get(name))} dash-${index % 4}` }));
  }
  svg.replaceChildren(...parts);
}

// What a screen reader reads in place of the lines: the newest value of each band.
export function newest(points, field, title) {
  const bands = points.length ? points.at(-1).bands : [];
  const found = bands
    .map((band) => [band.length_band, points.findLast((point) => value(point, band.length_band, field) !== null)])
    .filter(([, point]) => point !== undefined)
    .map(([name, point]) => `${name} tokens: ${seconds(value(point, name, field))}`);
  return `${title}, newest values. ${found.length ? found.join("; ") : "No requests in the last 15 minutes"}.`;
}

function value(point, name, field) {
  return point.bands.find((band) => band.length_band === name)[field];
}

function seconds(value) {
  if (value >= 0.9995) return `${Number(value.toPrecision(2))} s`;
  return value >= 0.0009995 ? `${Number((1000 * value).toPrecision(2))} ms` : `${Number((1e6 * value).toPrecision(2))} µs`;
}
