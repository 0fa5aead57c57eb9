// The atlas's table: a name to look for, and columns to sort by. Which models have a kind or a trait the page's own styles
// choose, and need no script.

import { html, write } from "./figure.js"

for (const atlas of document.querySelectorAll(".atlas")) {
  const body = atlas.querySelector("tbody")
  const rows = [...body.rows]
  const told = html("output")
  const name = html("input", { type: "search", autocomplete: "off", spellcheck: "false", input: show })
  atlas.querySelector(".atlas-choices").append(html("label", {}, "Name ", name), told)
  atlas.addEventListener("change", show)

  function show() {
    const plain = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "")
    for (const row of rows) row.hidden = !plain(row.id).includes(plain(name.value))
    write(told, `${rows.filter((row) => row.checkVisibility()).length} of ${rows.length} models`)
  }

  const heads = [...atlas.querySelectorAll("thead th")]
  heads.forEach((head, place) => {
    const text = (row) => row.cells[place].textContent
    const button = html("button", { type: "button", click: sort }, head.textContent)
    head.replaceChildren(button)

    function sort() {
      const down = head.getAttribute("aria-sort") === "ascending"
      for (const each of heads) each.removeAttribute("aria-sort")
      head.setAttribute("aria-sort", down ? "descending" : "ascending")
      rows.sort((one, other) => (down ? -1 : 1) * text(one).localeCompare(text(other), "en", { numeric: true }))
      body.append(...rows)
    }
  })
  show()
  atlas.closest("[data-live]")?.setAttribute("data-drawn", "")
  // A model that the address names is shown, whatever was chosen before.
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)))
  if (target && atlas.contains(target)) target.scrollIntoView()
}
