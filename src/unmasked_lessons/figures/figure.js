// What the live figures share: elements, the data of a figure, its styles, and how hands and eyes move in it.

const SVG = "http://www.w3.org/2000/svg"

// An element with its attributes and children. What is undefined or false is left out, and a function listens.
const make = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes))
    if (typeof value === "function") element.addEventListener(name, value)
    else if (name.startsWith("--")) element.style.setProperty(name, value)
    else if (value !== undefined && value !== false) element.setAttribute(name, value)
  element.append(...children)
  return element
}
export const html = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children)
export const svg = (tag, attributes = {}, ...children) => make(document.createElementNS(SVG, tag), attributes, children)

// Writes a text into an element that may be under a finger. Its text node stays: Firefox sends the moves of a finger to the
// node on which it came down, and to nobody once that is gone.
export function write(element, text) {
  const { firstChild: node } = element
  if (!(node instanceof Text) || node.nextSibling) element.textContent = text
  else if (node.data !== text) node.data = text
}

// How high figures were when their page was left: a reload restores the reader's place before it draws them again.
const heights = (() => {
  try {
    return sessionStorage
  } catch {
    return {} // of a browser that keeps nothing
  }
})()

// Draws each figure of a module, once its data and the styles are there; or, where it is far down and heavy, once it is seen.
// A figure that cannot be drawn stays as it was.
export async function figures(name, draw, { seen = false } = {}) {
  const found = [...document.querySelectorAll(`[data-live="${name}"]`)]
  if (!found.length) return
  const key = (place) => `${location.pathname} ${name} ${place} ${innerWidth}`
  found.forEach((figure, place) => (figure.style.minHeight = heights[key(place)] ?? ""))
  addEventListener("pagehide", () => found.forEach((figure, place) => (heights[key(place)] = `${figure.getBoundingClientRect().height}px`)))
  await styled()
  for (const figure of found) {
    if (seen) {
      figure.dataset.drawn = "still" // until then
      onSight(figure, () => fill(figure, name, draw))
    } else await fill(figure, name, draw)
  }
}

async function fill(figure, name, draw) {
  const data = figure.dataset.json && (await (await fetch(figure.dataset.json)).json())
  const drawn = html("div", { class: `live live-${name}` })
  const last = [...figure.childNodes]
  figure.replaceChildren(drawn)
  try {
    await draw(drawn, data)
    figure.dataset.drawn = ""
  } catch (error) {
    figure.replaceChildren(...last)
    throw error
  } finally {
    figure.style.minHeight = ""
  }
}

// Calls back when an element comes near to the screen for the first time.
function onSight(element, callback) {
  const observer = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return
    observer.disconnect()
    callback()
  }, { rootMargin: "200px" })
  observer.observe(element)
}

let sheet
function styled() {
  const href = new URL("live.css", import.meta.url)
  return (sheet ??= new Promise((load) => document.head.append(html("link", { rel: "stylesheet", href, load, error: load }))))
}

// One of several elements can be reached by Tab, and the arrow keys go on from there. Returns what makes one the first.
export function roving(elements, { back = ["ArrowLeft", "ArrowUp"], on = ["ArrowRight", "ArrowDown"] } = {}) {
  const reach = (place) => elements.forEach((each, k) => (each.tabIndex = k === place ? 0 : -1))
  elements.forEach((element, place) => {
    element.addEventListener("focus", () => reach(place))
    element.addEventListener("keydown", (event) => {
      const steps = { [back[0]]: -1, [back[1]]: -1, [on[0]]: 1, [on[1]]: 1, Home: -place, End: elements.length - 1 - place }
      const next = elements[place + (steps[event.key] ?? NaN)]
      if (next) (event.preventDefault(), next.focus())
    })
  })
  reach(0)
  return reach
}

// Calls back when an element has another width, and once at the beginning.
export function onWidth(element, draw) {
  let last
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width)
    if (width && width !== last) draw((last = width))
  }).observe(element)
}

export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches

// Numbers as the pages write them.
export const fixed = (value, digits = 2) =>
  Number.isNaN(value) ? "NaN" : (Object.is(+value.toFixed(digits), -0) ? 0 : value).toFixed(digits).replace("-", "−")
export const percent = (weight) =>
  Number.isNaN(weight) ? "NaN" : weight > 0 && weight < 0.005 ? "<1%" : `${(100 * weight).toFixed(0)}%`
