// A number of a unit, for people.
const scaled = (value, units) => {
  const [size, unit] = units.find(([size]) => value >= size) ?? units[units.length - 1];
  return (value / size).toPrecision(3) + " " + unit;
};
const show = {
  plain: value => value.toFixed(4),
  count: value => value.toFixed(0),
  percent: value => (100 * value).toFixed(2) + "%",
  seconds: value => scaled(value, [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]),
  bytes: value => scaled(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]),
  bits: value => scaled(value, [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]]),
  rate: value => scaled(value, [[1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]]),
};
// The number at a place of an axis.
const valueAt = (axis, place) => {
  const share = (place - axis.start) / (axis.end - axis.start);
  return axis.log ? axis.from * (axis.to / axis.from) ** share : axis.from + share * (axis.to - axis.from);
};
for (const svg of document.querySelectorAll("svg.lines[data-x]")) {
  const [across, up] = [JSON.parse(svg.dataset.x), JSON.parse(svg.dataset.y)], width = svg.viewBox.baseVal.width;
  const lines = [...svg.querySelectorAll("polyline")].map(line => ({ line, points: [...line.points] }));
  const cursor = svg.querySelector(".cursor"), readout = svg.parentElement.querySelector(".readout");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), scale = box.width / width;
    let x = Math.min(across.end, Math.max(across.start, (event.clientX - box.left) / scale));
    if (across.unit === "count") {
      // Between two epochs there is nothing to read.
      const places = lines.flatMap(({ points }) => points.map(point => point.x));
      x = places.reduce((best, place) => Math.abs(place - x) < Math.abs(best - x) ? place : best, Infinity);
    }
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.visibility = "visible";
    // Each line as it was by then, the uppermost first.
    const read = lines.map(({ line, points }) => ({ line, point: points.findLast(point => point.x <= x + 0.05) }))
      .filter(({ point }) => point).sort((a, b) => a.point.y - b.point.y);
    readout.replaceChildren(show[across.unit](valueAt(across, x)));
    for (const { line, point } of read) {
      const row = document.createElement("div"), sample = svg.ownerDocument.createElementNS(svg.namespaceURI, "svg");
      sample.innerHTML = `<line class="${line.getAttribute("class")}" stroke-width="2.5" x1="0" x2="22" y1="6" y2="6"/>`;
      sample.setAttribute("width", 22); sample.setAttribute("height", 12);
      row.append(sample, `${show[up.unit](valueAt(up, point.y))}  ${line.dataset.name}`);
      readout.append(row);
    }
    readout.style.visibility = "visible"; readout.style.top = "20px";
    const at = x * scale + 24;
    readout.style.left = Math.max(0, at + readout.offsetWidth < box.width ? at : x * scale - readout.offsetWidth) + "px";
  });
  svg.addEventListener("pointerleave", () => { cursor.style.visibility = readout.style.visibility = "hidden"; });
}
// A row alone, while the pointer is on its name.
for (const key of document.querySelectorAll(".key[data-row]")) {
  const others = [...document.querySelectorAll("[data-row]")].filter(it => it.dataset.row !== key.dataset.row);
  key.addEventListener("pointerenter", () => others.forEach(it => it.classList.add("dim")));
  key.addEventListener("pointerleave", () => others.forEach(it => it.classList.remove("dim")));
}
