// Draws a list of weights as bars, in the place of each figure that names this module.
for (const figure of document.querySelectorAll('[data-live="bars"]')) {
  const { names, weights } = await (await fetch(figure.dataset.json)).json()
  const bar = (weight, place) => {
    const meter = document.createElement("meter")
    Object.assign(meter, { value: weight, title: names[place] })
    meter.setAttribute("aria-label", `${names[place]}: ${weight}`)
    return meter
  }
  figure.replaceChildren(...weights.map(bar))
  figure.dataset.drawn = ""
}
