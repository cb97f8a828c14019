"use strict";
(() => {
const find = (query, root = document) => root.querySelector(query);
const every = (query, root = document) => [...root.querySelectorAll(query)];
const data = JSON.parse(find("#data").textContent);

// tables: sort by a head's button, filter by words and kind
const valueOf = (row, column) => {
  const cell = row.cells[column];
  if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
  return cell.textContent.trim();
};
for (const button of every("thead button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = button.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const numbers = head.classList.contains("n");
    const keyed = [...body.rows].map((row) => [valueOf(row, head.cellIndex), row]);
    const absent = (value) => numbers && typeof value !== "number";
    keyed.sort(([a], [b]) => {
      if (absent(a) || absent(b)) return absent(a) - absent(b);
      const order = numbers ? a - b : String(a).localeCompare(String(b), "en", {numeric: true});
      return up ? order : -order;
    });
    body.append(...keyed.map(([, row]) => row));
  });
}
for (const input of every("[data-filters]")) {
  const body = find(`#${input.dataset.filters}`).tBodies[0];
  const kind = find(`[data-kinds="${input.dataset.filters}"]`), count = find(`[data-counts="${input.dataset.filters}"]`);
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      const fits = words.every((word) => text.includes(word)) && (!kind || !kind.value || row.cells[kind.dataset.column].textContent === kind.value);
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${body.rows.length}`;
  };
  input.addEventListener("input", apply);
  if (kind) kind.addEventListener("change", apply);
  apply();
}

// the graph: zoom, pan, choose
const view = find("#view"), graph = find("#graph");
if (!view || !graph) return;
const all = find("#all"), boxes = every(".b", all), lines = every(".lines path", all);
const [, , width, height] = graph.getAttribute("viewBox").split(" ").map(Number);
const most = Math.max(8, width / 300);
view.style.setProperty("--fit", `${Math.ceil(view.clientWidth * height / width) + 2}px`); // no higher than the whole graph is
let zoom = 1, left = 0, top = 0, chosen = -1, drag = null, moved = false;
const unit = () => {
  const size = graph.getBoundingClientRect();
  return Math.max(width / size.width, height / size.height);
};
const show = () => all.setAttribute("transform", `translate(${left} ${top}) scale(${zoom})`);
const place = (event) => {
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(graph.getScreenCTM().inverse());
  return [at.x, at.y];
};
const zoomBy = (factor, x = width / 2, y = height / 2) => {
  const next = Math.min(most, Math.max(0.5, zoom * factor)), step = next / zoom;
  left = x - (x - left) * step;
  top = y - (y - top) * step;
  zoom = next;
  show();
};
const fit = () => { zoom = 1; left = top = 0; show(); };
const centerOf = (number) => {
  const at = boxes[number].transform.baseVal.consolidate().matrix;
  return [at.e + 62, at.f + 20];
};
const reveal = (number) => {
  const [x, y] = centerOf(number);
  zoom = Math.min(most, Math.max(zoom, 0.9 * unit()));
  left = width / 2 - x * zoom;
  top = height / 2 - y * zoom;
  show();
};
const add = (parent, name, text, more = {}) => {
  const made = Object.assign(document.createElement(name), more);
  if (text) made.textContent = text;
  parent.append(made);
  return made;
};
const detail = find("#detail"), rowOf = new Map(data.rows.map((tensor, row) => [tensor, row]));
const maker = new Map();
data.nodes.forEach((node) => node[4].forEach((name) => maker.set(name, node[2])));
const mark = (tensor) => {
  every("tr.on").forEach((row) => row.classList.remove("on"));
  const row = rowOf.has(tensor) && find(`#tensors-${rowOf.get(tensor)}`);
  if (row) row.classList.add("on");
  return row;
};
const tensorButton = (list, number) => {
  const name = data.tensors[number], item = add(list, "li");
  if (!rowOf.has(number)) return void add(item, "span", name);
  add(item, "button", name, {type: "button"}).addEventListener("click", () => {
    const row = mark(number);
    row.hidden = false;
    row.scrollIntoView({block: "center"});
    find("button", row).focus({preventScroll: true});
  });
};
const boxButton = (list, number) => {
  const box = data.boxes[number];
  add(add(list, "li"), "button", `${box[0]} (${box[2] || box[1]})`, {type: "button"}).addEventListener("click", () => {
    choose(number);
    reveal(number);
  });
};
const listed = (title, numbers, each) => {
  if (!numbers.length) return;
  add(detail, "h3", title);
  const list = add(detail, "ul");
  numbers.slice(0, 24).forEach((number) => each(list, number));
  if (numbers.length > 24) add(list, "li", `and ${numbers.length - 24} more`);
};
const choose = (number) => {
  boxes.concat(lines).forEach((one) => one.classList.remove("on"));
  chosen = number;
  boxes[number].classList.add("on");
  const from = [], to = [];
  data.lines.forEach(([source, target], line) => {
    if (source !== number && target !== number) return;
    lines[line].classList.add("on");
    (target === number ? from : to).push(target === number ? source : target);
  });
  const [title, kind, type, reason] = data.boxes[number], inside = data.nodes.filter((node) => node[2] === number);
  detail.replaceChildren();
  add(detail, "h3", title);
  add(detail, "p", [kind, type].filter(Boolean).join(", "));
  if (reason) add(detail, "p", reason);
  listed("Operators", inside, (list, node) => {
    const item = add(list, "li", `${node[1]} ${node[0]}`), text = data.attributes[node[5]];
    if (text) add(item, "div", text, {className: "attributes"});
  });
  const made = new Set(inside.flatMap((node) => node[4]));
  listed("Reads tensors", [...new Set(inside.flatMap((node) => node[3]))].filter((one) => !made.has(one)), tensorButton);
  listed("Makes tensors", [...made], tensorButton);
  listed("Reads from", from, boxButton);
  listed("Read by", to, boxButton);
  mark([...made].find((one) => rowOf.has(one)));
};
boxes.forEach((box, number) => box.addEventListener("click", () => { if (!moved) choose(number); }));
view.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  drag = [...place(event), left, top];
  moved = false;
});
addEventListener("pointermove", (event) => {
  if (!drag) return;
  const [x, y] = place(event);
  if (Math.hypot(x - drag[0], y - drag[1]) > 4 * unit()) moved = true;
  left = drag[2] + x - drag[0];
  top = drag[3] + y - drag[1];
  show();
});
addEventListener("pointerup", () => { drag = null; });
view.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey && document.activeElement !== view) return;
  event.preventDefault();
  zoomBy(Math.exp(-event.deltaY / 400), ...place(event));
}, {passive: false});
view.addEventListener("keydown", (event) => {
  const far = 60 * unit(), keys = {
    "+": () => zoomBy(1.3), "=": () => zoomBy(1.3), "-": () => zoomBy(1 / 1.3), "0": fit,
    ArrowLeft: () => { left += far; show(); }, ArrowRight: () => { left -= far; show(); },
    ArrowUp: () => { top += far; show(); }, ArrowDown: () => { top -= far; show(); },
    n: () => step(1), p: () => step(-1),
  };
  if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
const step = (by) => {
  const next = Math.min(boxes.length - 1, Math.max(0, chosen + by));
  choose(next);
  reveal(next);
};
// find boxes by the words of their operators, tensors, kind and type
const search = find("#search"), words = boxes.map((_, number) => data.boxes[number].slice(0, 3).join(" ").toLowerCase());
data.nodes.forEach((node) => {
  words[node[2]] += ` ${[node[0], node[1], ...node[4].map((name) => data.tensors[name])].join(" ").toLowerCase()}`;
});
let hits = [];
search.addEventListener("input", () => {
  const parts = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  hits = parts.length ? words.flatMap((text, number) => (parts.every((part) => text.includes(part)) ? [number] : [])) : [];
  boxes.forEach((box) => box.classList.remove("hit"));
  hits.forEach((number) => boxes[number].classList.add("hit"));
  find("#found").textContent = parts.length ? `${hits.length} of ${boxes.length} boxes` : "";
});
search.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !hits.length) return;
  const later = hits.filter((number) => number > chosen), next = event.shiftKey ? hits.filter((number) => number < chosen).pop() : later[0];
  choose(next ?? hits[event.shiftKey ? hits.length - 1 : 0]);
  reveal(chosen);
});

// color boxes by the lowest SQNR of what they make
const worst = new Map(), known = new Map(data.rows.map((tensor, row) => [tensor, data.sqnr[row]]));
data.nodes.forEach((node) => node[4].forEach((name) => {
  const value = known.get(name);
  if (value != null) worst.set(node[2], Math.min(value, worst.get(node[2]) ?? Infinity));
}));
const stepOf = (value) => Math.min(4, Math.max(0, Math.floor(value / 10)));
find("#by-loss").hidden = !worst.size;
find("#loss").addEventListener("change", (event) => {
  all.classList.toggle("colored", event.target.checked);
  find("#scale").hidden = !event.target.checked;
  worst.forEach((value, number) => boxes[number].classList.toggle(`s${stepOf(value)}`, event.target.checked));
});
find("#zoom-in").addEventListener("click", () => zoomBy(1.4));
find("#zoom-out").addEventListener("click", () => zoomBy(1 / 1.4));
find("#zoom-fit").addEventListener("click", fit);
find("#zoom-real").addEventListener("click", () => (chosen < 0 ? (zoom = unit(), left = top = 0, show()) : reveal(chosen)));
find("#next").addEventListener("click", () => step(1));
find("#previous").addEventListener("click", () => step(-1));
every("#detail [data-box]").forEach((button) => button.addEventListener("click", () => {
  choose(Number(button.dataset.box));
  reveal(chosen);
}));
every("#tensors tbody th button").forEach((button) => button.addEventListener("click", () => {
  const tensor = data.rows[Number(button.closest("tr").id.slice("tensors-".length))], number = maker.get(tensor);
  if (number === undefined) return;
  choose(number);
  mark(tensor);
  reveal(number);
  view.scrollIntoView({block: "nearest"});
}));
fit();
})();
