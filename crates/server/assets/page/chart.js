// A small chart of the last values of a few lines, drawn in SVG.

import { h, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 92;
/** Values that a chart keeps: two minutes of one per second. */
export const KEPT = 120;
const COLOURS = ["one", "two", "three"];

/**
 * A card with a title, the newest figures and their course. `lines` are `{name, of}`, where `of`
 * takes a value of the server's figures, and `format` makes text of it. `most` fixes the upper end.
 */
export class Chart {
  constructor({ title, lines, format, most = null, note = "" }) {
    Object.assign(this, { title, lines, format, most });
    this.courses = lines.map(() => []);
    this.figures = lines.map(() => h("b", {}, "-"));
    this.areas = lines.map((_, i) => svg("path", { class: `area ${COLOURS[i]}` }));
    this.paths = lines.map((_, i) => svg("path", { class: COLOURS[i] }));
    this.top = h("span", {}, "");
    const grid = [1, HEIGHT / 2, HEIGHT - 1].map((y) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y }));
    this.picture = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, ...grid, ...this.areas, ...this.paths);
    const figure = (line, i) => h("div", { class: "figure" }, this.figures[i], h("i", { class: COLOURS[i] }), h("span", {}, line.name));
    this.element = h("section", { class: "card", "aria-label": title, title: note || undefined },
      h("h2", {}, title), h("div", { class: "figures" }, lines.map(figure)), this.picture,
      h("div", { class: "scale", "aria-hidden": "true" }, this.top, h("span", {}, "last 2 minutes")));
  }

  /** Adds the values of one moment; a value that is not known leaves a gap. */
  add(figures) {
    this.lines.forEach((line, i) => {
      const value = line.of(figures);
      const course = this.courses[i];
      course.push(Number.isFinite(value) ? value : null);
      if (course.length > KEPT) course.shift();
      this.figures[i].textContent = Number.isFinite(value) ? this.format(value) : "-";
    });
    this.draw();
  }

  draw() {
    const values = this.courses.flat().filter((value) => value !== null);
    const most = this.most ?? nice(Math.max(...values, 0));
    this.top.textContent = values.length || this.most ? this.format(most) : "";
    this.courses.forEach((course, i) => {
      const [line, area] = drawn(course, most);
      this.paths[i].setAttribute("d", line);
      this.areas[i].setAttribute("d", i === 0 ? area : "");
    });
    const said = this.lines.map((line, i) => `${line.name} ${this.figures[i].textContent}`).join(", ");
    this.picture.setAttribute("aria-label", `${this.title}: ${said}`);
  }
}

/** A round number that is not below a value. */
export function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

/** The outlines of a course and of the area below it; the newest value is at the right. */
function drawn(course, most) {
  const x = (i) => ((KEPT - course.length + i) / (KEPT - 1)) * WIDTH;
  const y = (value) => HEIGHT - 1 - Math.min(1, value / most) * (HEIGHT - 3);
  let [line, area, from] = ["", "", null];
  course.forEach((value, i) => {
    if (value === null) {
      from = null;
      return;
    }
    const at = `${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    line += `${from === null ? "M" : "L"}${at}`;
    if (from !== null) area += `M${from} L${at} L${x(i).toFixed(1)} ${HEIGHT} L${from.split(" ")[0]} ${HEIGHT}Z`;
    from = at;
  });
  return [line, area];
}
