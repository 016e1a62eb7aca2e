// The page is written to again each second: nothing is touched that did not change, so that focus, selection and
// screen readers stay where they are. Text goes in as text only.

export const $ = (id) => document.getElementById(id);

export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

export function tone(element, value) {
  if (element.dataset.tone !== value) element.dataset.tone = value;
}

export function create(tag, className = "", content = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (content) element.textContent = content;
  return element;
}

/** Children of `parent`, one for each item in this order: `make()` for a new key, `fill(element, item)` for all. */
export function keyed(parent, items, key, make, fill) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = key(item);
    let child = old.get(name);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = name;
    }
    old.delete(name);
    fill(child, item);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  for (const child of old.values()) child.remove();
}

/**
 * The rows of a table. `cells(item)` gives for each column its text, or {text, hint, tone}. Roles are written out: where a
 * narrow page lays rows out as blocks, browsers forget that they are a table.
 */
export function rows(table, items, key, cells) {
  const none = $(`${table.id}-none`);
  show(table, items.length > 0);
  if (none) show(none, items.length === 0);
  const headings = [...table.tHead.rows[0].cells];
  const make = () => {
    const row = create("tr");
    row.setAttribute("role", "row");
    headings.forEach((heading, index) => {
      const cell = create(index ? "td" : "th", heading.className);
      cell.setAttribute("role", index ? "cell" : "rowheader");
      if (!index) cell.scope = "row";
      cell.dataset.label = heading.textContent;
      cell.append(create("span", "value"), create("span", "hint"));
      row.append(cell);
    });
    return row;
  };
  const fill = (row, item) => {
    cells(item).forEach((content, index) => {
      const { text: value, hint = "", tone: colour = "" } = typeof content === "object" ? content : { text: content };
      const cell = row.cells[index];
      text(cell.children[0], value);
      text(cell.children[1], hint);
      tone(cell, colour);
    });
  };
  keyed(table.tBodies[0], items, key, make, fill);
}

export function prepare(table) {
  table.setAttribute("role", "table");
  for (const group of [table.tHead, table.tBodies[0]]) group.setAttribute("role", "rowgroup");
  table.tHead.rows[0].setAttribute("role", "row");
  for (const heading of table.tHead.rows[0].cells) heading.setAttribute("role", "columnheader");
}
