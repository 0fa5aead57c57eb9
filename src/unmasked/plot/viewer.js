/* The live viewer of `unmasked.show`: it takes the place of the table beside it, and computes nothing but means. */
;(() => {
  const STYLE = `
    :host { display: block; font-size: 0.85rem; line-height: 1.4 }
    .bar { display: flex; flex-wrap: wrap; gap: 0.4rem 1rem; align-items: center; margin: 0.4rem 0 }
    .heads { display: flex; flex-wrap: wrap; gap: 0.3rem }
    button, select, input { font: inherit; color: inherit; accent-color: rgb(42, 163, 173) }
    select, option { background: Canvas; color: CanvasText }
    button { padding: 0.2rem; min-width: 44px; min-height: 44px; background: none; border: 2px solid rgba(127, 128, 129, 0.4);
      border-radius: 4px; cursor: pointer }
    button canvas { display: block; margin: auto; width: 40px; height: 40px; image-rendering: pixelated }
    button[aria-pressed=true] { border-color: rgb(200, 112, 42) }
    @media (forced-colors: active) { button[aria-pressed=true] { outline: 3px solid Highlight } }
    input[type=range] { width: 10rem; min-height: 24px; vertical-align: middle }
    :focus-visible { outline: 2px solid rgb(200, 112, 42); outline-offset: 1px }
    .scroll { overflow: auto; max-height: 75vh; max-width: 100% }
    .plot { display: grid; grid-template: auto auto / auto auto; width: max-content; gap: 2px 4px }
    .over, .map { grid-column: 2 }
    .plot > .axis { align-self: start }
    .axis { font-size: 0.88em; opacity: 0.85 }
    .rows, .columns { font-size: 0.88em; display: grid; white-space: nowrap }
    .rows { justify-items: end; align-items: center }
    .columns { grid-auto-flow: column; justify-items: center; align-items: end }
    .columns span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 7em; overflow: hidden; line-height: 1 }
    .rows span { max-width: 9em; overflow: hidden; text-overflow: ellipsis; line-height: 1 }
    .at { font-weight: 700 }
    .map { position: relative; cursor: crosshair; touch-action: pan-x pan-y }
    .map canvas { display: block; outline: 1px solid rgba(127, 128, 129, 0.5) }
    .map div { position: absolute; pointer-events: none; box-sizing: border-box; border: 1.5px solid rgb(200, 112, 42) }
    .told { min-height: 4.5em; margin: 0.4rem 0 }
    .legend { margin: 0.4rem 0; font-size: 0.88em }`
  const make = (name, properties = {}, ...inside) => {
    const made = Object.assign(document.createElement(name), properties)
    made.append(...inside)
    return made
  }
  const write = (weight) =>
    Number.isNaN(weight) ? "NaN" : weight === 0 ? "exactly 0" : String(+weight.toPrecision(3)).replace("-", "−")

  // One pixel for each weight. Half transparent: the page's own colour shines through, light or dark.
  function picture(values, columns, largest, hidden) {
    const rows = values.length / columns
    const canvas = make("canvas", { width: columns, height: rows })
    const pixels = new ImageData(columns, rows)
    values.forEach((value, place) => {
      const strength = Math.min(1, Math.abs(value) / largest)
      const colour = Number.isNaN(value) ? [200, 60, 40, 230]
        : Math.abs(value) < hidden || value === 0 ? [0, 0, 0, 0]
        : [...(value < 0 ? [224, 138, 60] : [42, 163, 173]), 20 + 215 * strength]
      pixels.data.set(colour, 4 * place)
    })
    canvas.getContext("2d").putImageData(pixels, 0, 0)
    return canvas
  }

  function live(place) {
    const { title, shape, queries, keys, weights: text } = JSON.parse(place.dataset.show)
    const [items, heads, rows, columns] = shape
    const bytes = new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer)
    const all = Float32Array.from({ length: bytes.byteLength / 4 }, (_, each) => bytes.getFloat32(4 * each, true))
    const size = rows * columns
    const largest = all.reduce((most, each) => (Number.isFinite(each) ? Math.max(most, Math.abs(each)) : most), 0) || 1
    const state = { item: 0, head: 0, row: 0, column: 0, hidden: 0 }
    const of = (head) => {
      const from = (state.item * heads + head) * size
      return all.subarray(from, from + size)
    }
    const mean = () => {
      const sum = new Float32Array(size)
      for (let head = 0; head < heads; head++) of(head).forEach((each, at) => (sum[at] += each / heads))
      return sum
    }
    const values = () => (state.head < heads ? of(state.head) : mean())

    const root = place.attachShadow({ mode: "open" })
    const choices = make("div", { className: "heads" })
    choices.setAttribute("role", "group")
    choices.setAttribute("aria-label", "Head")
    const map = make("canvas", { tabIndex: 0 })
    map.setAttribute("role", "application")
    map.setAttribute("aria-label", `${title}: rows are queries, columns are keys. The arrow keys move.`)
    const [band, stack] = [make("div"), make("div")]
    const labels = (names, className) => {
      const made = make("div", { className }, ...names.map((name) => make("span", { textContent: name, title: name })))
      made.setAttribute("aria-hidden", "true")
      return made
    }
    const [left, top] = [labels(queries, "rows"), labels(keys, "columns")]
    const told = make("p", { className: "told" })
    told.setAttribute("aria-live", "polite")
    const hides = make("input", { type: "range", min: 0, max: 100, value: 0 })
    const limit = make("output", { textContent: "0" })
    const bar = make("div", { className: "bar" })
    if (items > 1) {
      const item = make("select", {}, ...Array.from({ length: items }, (_, each) => make("option", { textContent: each })))
      item.addEventListener("change", () => { state.item = item.selectedIndex; thumbnails(); draw() })
      bar.append(make("label", {}, "item ", item))
    }
    bar.append(make("label", {}, "hide weights below ", hides, " ", limit))
    const zero = all.includes(0), lost = all.some(Number.isNaN)
    const legend = [`The stronger the color, the larger, up to ${write(largest)}.`]
    if (zero) legend.push("Hatched: exactly 0, as blocked weights are.")
    if (lost) legend.push("Red: NaN.")
    const scroll = make("div", { className: "scroll" }, make("div", { className: "plot" },
      make("span", { className: "axis", textContent: "queries ↓" }),
      make("div", { className: "over" }, make("div", { className: "axis", textContent: "keys →" }), top),
      left, make("div", { className: "map" }, map, band, stack)))
    // A page whose policy refuses styles that a script makes takes this one.
    const sheet = new CSSStyleSheet()
    sheet.replaceSync(STYLE)
    root.adoptedStyleSheets = [sheet]
    root.append(bar, ...(heads > 1 ? [choices] : []), scroll, told,
      make("p", { className: "legend", textContent: legend.join(" ") }))

    let cell = 0
    function fit() {
      const labelled = Math.min(9, Math.max(...queries.map((name) => name.length))) * 8 + 24
      const wide = Math.floor((place.clientWidth - labelled) / columns)
      const next = Math.max(3, Math.min(28, wide))
      if (next === cell) return
      cell = next
      left.style.gridAutoRows = top.style.gridAutoColumns = `${cell}px`
      // Letters that do not fit between the lines would be read as those of the next.
      left.style.display = top.style.display = cell < 12 ? "none" : ""
      draw()
    }
    function draw() {
      const shown = values(), scale = window.devicePixelRatio || 1, hidden = state.hidden
      map.width = columns * cell * scale
      map.height = rows * cell * scale
      map.style.width = `${columns * cell}px`
      const brush = map.getContext("2d")
      brush.scale(scale, scale)
      brush.imageSmoothingEnabled = false
      brush.drawImage(picture(shown, columns, largest, hidden), 0, 0, columns * cell, rows * cell)
      if (cell > 4) {
        brush.strokeStyle = "rgba(127, 128, 129, 0.75)"
        brush.beginPath()
        shown.forEach((value, at) => {
          if (value !== 0) return
          const [x, y] = [(at % columns) * cell, Math.floor(at / columns) * cell]
          for (const shift of cell > 12 ? [-0.5, 0, 0.5] : [0]) {
            const [from, to] = [Math.max(0, shift), Math.min(1, 1 + shift)]
            brush.moveTo(x + from * cell, y + (1 + shift - from) * cell)
            brush.lineTo(x + to * cell, y + (1 + shift - to) * cell)
          }
        })
        brush.stroke()
      }
      tell()
    }
    function tell() {
      const shown = values(), { row, column } = state
      const given = shown.subarray(row * columns, (row + 1) * columns)
      Object.assign(band.style, { left: 0, top: `${row * cell}px`, width: `${columns * cell}px`, height: `${cell}px` })
      Object.assign(stack.style, { top: 0, left: `${column * cell}px`, width: `${cell}px`, height: `${rows * cell}px` })
      for (const [of, at] of [[left, row], [top, column]])
        [...of.children].forEach((each, place) => each.classList.toggle("at", place === at))
      const named = (names, place) => (names[place] === String(place) ? `${place}` : `${place} “${names[place]}”`)
      const order = [...given.keys()].filter((each) => given[each]).sort((a, b) => given[b] - given[a]).slice(0, 4)
      const sum = given.reduce((a, b) => a + b, 0)
      const most = order.map((each) => `${keys[each]} ${write(given[each])}`).join(", ")
      const head = heads < 2 ? "" : state.head < heads ? `Head ${state.head}. ` : "Mean of heads. "
      told.textContent = `${head}Query ${named(queries, row)} gives key ` +
        `${named(keys, column)} ${write(given[column])}. Its largest: ${most || "none"}. The row sums to ${write(sum)}` +
        `${Number.isNaN(sum) ? ": it has NaN" : ""}.`
    }
    function thumbnails() {
      const matrices = Array.from({ length: heads }, (_, head) => [String(head), of(head)])
      choices.replaceChildren(...[...matrices, ["mean", mean()]].map(([name, matrix], head) => {
        const button = make("button", { type: "button" }, picture(matrix, columns, largest, 0), name)
        button.setAttribute("aria-pressed", head === state.head)
        button.setAttribute("aria-label", name === "mean" ? "mean of heads" : `head ${name}`)
        button.addEventListener("click", () => {
          choices.querySelector("[aria-pressed=true]").setAttribute("aria-pressed", false)
          button.setAttribute("aria-pressed", true)
          state.head = head
          draw()
        })
        return button
      }))
    }
    function move(row, column) {
      row = Math.max(0, Math.min(rows - 1, row))
      column = Math.max(0, Math.min(columns - 1, column))
      if (row === state.row && column === state.column) return
      Object.assign(state, { row, column })
      tell()
    }
    const point = (event) => {
      const box = map.getBoundingClientRect()
      move(Math.floor((event.clientY - box.top) / cell), Math.floor((event.clientX - box.left) / cell))
    }
    map.addEventListener("pointermove", point)
    map.addEventListener("pointerdown", point)
    map.addEventListener("keydown", (event) => {
      const { row, column } = state
      const to = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
        ArrowRight: [row, column + 1], Home: [row, 0], End: [row, columns - 1] }[event.key]
      if (!to || event.ctrlKey || event.metaKey || event.altKey) return
      event.preventDefault()
      event.stopPropagation() // a notebook would go on to its next cell
      move(...to)
      const at = (names, place) => names.children[place].scrollIntoView({ block: "nearest", inline: "nearest" })
      if (cell >= 12) at(left, state.row), at(top, state.column)
      else Object.assign(scroll, { scrollLeft: state.column * cell - scroll.clientWidth / 2,
        scrollTop: state.row * cell - scroll.clientHeight / 2 })
    })
    hides.addEventListener("input", () => {
      state.hidden = (largest * hides.value) / 100
      limit.textContent = write(state.hidden).replace("exactly ", "")
      draw()
    })
    if (heads > 1) thumbnails()
    new ResizeObserver(fit).observe(place)
    fit()
  }

  const here = document.currentScript && document.currentScript.closest(".unmasked-show")
  for (const place of here ? [here] : document.querySelectorAll('.unmasked-show[data-mark="MARK"]'))
    if (!place.shadowRoot) live(place)
})()
