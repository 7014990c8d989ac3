// The picture of sequences in flight: length on a logarithmic axis, factor sets as bands, one mark for each sequence.

const SVG = "http://www.w3.org/2000/svg";
const SETS = 8;
const PADDING = 12;
const QUEUE = 44;
const AXIS = 22;
const NAMES = 22;
const NARROWEST_TICK = 56;

const marks = new Map();
let frame = "";

// status: the response of /v1/status, with figures. svg: the element to draw into.
export function drawPicture(svg, status) {
  const width = svg.clientWidth;
  const height = svg.clientHeight;
  if (width === 0) return;
  const sets = status.sets;
  const longest = sets.at(-1).max_length;
  const shortest = Math.min(16, longest / 2);
  const x = (tokens) => {
    const share = Math.log(Math.max(tokens, shortest) / shortest) / Math.log(longest / shortest);
    return PADDING + Math.min(1, share) * (width - 2 * PADDING);
  };
  drawFrame(svg, sets, x, shortest, width, height);
  const top = NAMES + 8;
  const bottom = height - AXIS - QUEUE - 8;
  const group = svg.querySelector(".marks");
  const seen = new Set();
  for (const each of status.figures.running) {
    // Numbers are unique in one API server process.
    const key = `${status.figures.process}/${each.number}`;
    seen.add(key);
    let mark = marks.get(key);
    if (mark === undefined) {
      mark = newMark();
      marks.set(key, mark);
      group.append(mark.group);
    }
    // Golden ratio: consecutive arrivals are far apart, and a mark keeps its height while the sequence runs.
    const lane = (each.number * 0.618034) % 1;
    const y = each.state === "queued" ? height - AXIS - QUEUE + 10 + lane * (QUEUE - 20) : top + lane * (bottom - top);
    const index = sets.findIndex((set) => set.name === each.factor_set);
    const start = each.state === "decoding" ? x(each.prompt_tokens) : PADDING;
    const share = each.state === "prefilling" ? each.computed_tokens / each.prompt_tokens : 0;
    const end = each.state === "decoding" ? x(each.tokens) : PADDING + share * (x(each.prompt_tokens) - PADDING);
    mark.group.setAttribute("class", `mark ${each.state} ${colour(index)}`);
    mark.tail.style.transform = `translate(${start}px, ${y}px) scaleX(${each.state === "queued" ? 0 : Math.max(0, end - start)})`;
    mark.dot.style.transform = `translate(${each.state === "decoding" ? end : x(each.prompt_tokens)}px, ${y}px)`;
  }
  for (const [key, mark] of marks) {
    if (!seen.has(key)) {
      mark.group.remove();
      marks.delete(key);
    }
  }
}

// A sentence that says what the picture shows.
export function summary(status) {
  const running = status.figures.running;
  const count = (state) => running.filter((each) => each.state === state).length;
  const bySet = status.sets
    .map((set) => [set.name, running.filter((each) => each.state === "decoding" && each.factor_set === set.name).length])
    .filter(([, decoding]) => decoding > 0)
    .map(([name, decoding]) => `${decoding} in ${name}`);
  const all = status.figures.live.reduce((sum, row) => sum + row.waiting + row.generating, 0);
  const parts = [
    `${count("decoding")} decoding${bySet.length ? ` (${bySet.join(", ")})` : ""}`,
    `${count("prefilling")} prefilling`,
    `${count("queued")} queued`,
  ];
  const { processes, running_total: total } = status.figures;
  const notes = [];
  if (total > running.length) notes.push(` ${total - running.length} more are not drawn.`);
  if (processes === "several" && all > total) notes.push(` ${all - total} more run in other API server processes.`);
  return `${parts.join(", ")}.${notes.join("")}`;
}

export function colour(index) {
  return index < 0 ? "set-other" : `set-${index % SETS}`;
}

function newMark() {
  const group = made("g");
  const tail = made("rect", { width: 1, height: 2, y: -1, class: "tail" });
  const dot = made("circle", { r: 5 });
  group.append(tail, dot);
  return { group, tail, dot };
}

// Draws the parts that do not move; redraws them only if the size or the ladder has changed.
function drawFrame(svg, sets, x, shortest, width, height) {
  const now = JSON.stringify([width, height, sets.map((set) => [set.name, set.max_length])]);
  if (now === frame) return;
  frame = now;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [];
  let start = shortest;
  for (const [index, set] of sets.entries()) {
    const [left, right] = [x(start), x(set.max_length)];
    const band = made("g", { class: `band ${colour(index)}` });
    band.append(made("rect", { x: left, y: 0, width: Math.max(1, right - left), height: height - AXIS }));
    // About 7 pixels a letter.
    if (right - left > 7 * set.name.length + 8) band.append(made("text", { x: left + 6, y: 15 }, set.name));
    parts.push(band);
    start = set.max_length;
  }
  const line = height - AXIS - QUEUE;
  parts.push(made("line", { x1: 0, x2: width, y1: line, y2: line, class: "rule" }));
  parts.push(made("text", { x: PADDING, y: line + 14, class: "note" }, "queued"));
  const decades = [];
  for (let tokens = 1; tokens <= sets.at(-1).max_length; tokens *= 2) decades.push(tokens);
  const limits = sets.map((set) => set.max_length);
  // The ends of the sets first, then powers of two where there is room.
  const taken = [];
  for (const tokens of [...limits.toReversed(), ...decades.toReversed()]) {
    const place = x(tokens);
    if (tokens < shortest || taken.some((other) => Math.abs(other - place) < NARROWEST_TICK)) continue;
    taken.push(place);
    const anchor = place > width - 30 ? "end" : place < 30 ? "start" : "middle";
    parts.push(made("text", { x: place, y: height - 6, "text-anchor": anchor, class: "note" }, short(tokens)));
  }
  const group = made("g", { class: "marks" });
  group.append(...[...marks.values()].map((mark) => mark.group));
  svg.replaceChildren(...parts, group);
}

function short(tokens) {
  return tokens >= 1024 && tokens % 1024 === 0 ? `${(tokens / 1024).toLocaleString("en")}k` : tokens.toLocaleString("en");
}

function made(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}
