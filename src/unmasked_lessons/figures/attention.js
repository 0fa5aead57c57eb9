// Attention on plain arrays, in double precision: all that a live figure computes. tests/browser holds it to PyTorch.
//
// A matrix is an array of rows. The options, all of them optional:
//   mask    true where a query may see a key: a row for each query, or one row for all of them
//   bias    added to the scores, -Infinity shuts a key out: like mask
//   causal  no query sees a later key; the last query is aligned with the last key
//   scale   what the dot products are multiplied by: one over the root of their length, unless given
//   blind   the weights of a query that may see nothing: 0, as of PyTorch's function, or NaN, as of its module

export const dot = (a, b) => a.reduce((sum, each, k) => sum + each * b[k], 0)

export function softmax(scores, blind = 0) {
  const largest = Math.max(...scores)
  if (largest === -Infinity) return scores.map(() => blind)
  const powers = scores.map((score) => Math.exp(score - largest))
  const sum = powers.reduce((a, b) => a + b, 0)
  return powers.map((power) => power / sum)
}

export function scores(queries, keys, { scale } = {}) {
  for (const each of [...queries, ...keys])
    if (each.length !== queries[0].length)
      throw new RangeError(`a key or query has ${each.length} numbers, and another ${queries[0].length}: give as many`)
  const factor = scale ?? 1 / Math.sqrt(queries[0].length)
  return queries.map((query) => keys.map((key) => factor * dot(query, key)))
}

export function weights(scores, { mask, bias, causal, blind } = {}) {
  const at = (table, i, j) => (Array.isArray(table[0]) ? table[i][j] : table[j])
  return scores.map((row, i) => {
    const seen = (j) => (!mask || at(mask, i, j)) && (!causal || j - row.length <= i - scores.length)
    return softmax(row.map((score, j) => (seen(j) ? score + (bias ? at(bias, i, j) : 0) : -Infinity)), blind)
  })
}

// The weighted averages: a row for each row of weights.
export const average = (weights, values) =>
  weights.map((row) => values[0].map((_, k) => row.reduce((sum, weight, j) => sum + weight * values[j][k], 0)))

// Online softmax: what a row has come to after each tile of so many scores, beginning with none. Each state has the largest
// score, the sum of the exponentials measured from it, the sum of the values times these, and the average. The factor is
// what the sums before were multiplied by; share is what this tile alone adds to the sum.
export function online(scores, values, tile) {
  const states = [{ largest: -Infinity, total: 0, summed: values[0].map(() => 0), average: values[0].map(() => 0) }]
  for (let start = 0; start < scores.length; start += tile) {
    const before = states.at(-1)
    const [some, those] = [scores.slice(start, start + tile), values.slice(start, start + tile)]
    const largest = Math.max(before.largest, ...some)
    const origin = largest === -Infinity ? 0 : largest // else a row that has seen nothing would be NaN
    const powers = some.map((score) => Math.exp(score - origin))
    const factor = Math.exp(before.largest - origin)
    const share = powers.reduce((a, b) => a + b, 0)
    const total = before.total * factor + share
    const summed = average([powers], those)[0].map((sum, k) => before.summed[k] * factor + sum)
    states.push({ start, largest, total, summed, factor, share, average: summed.map((sum) => (total ? sum / total : 0)) })
  }
  return states
}

export function attention(queries, keys, values, options) {
  if (keys.length !== values.length)
    throw new RangeError(`there are ${keys.length} keys and ${values.length} values: give one value for each key`)
  const compared = scores(queries, keys, options)
  const shares = weights(compared, options)
  return { scores: compared, weights: shares, context: average(shares, values) }
}
