// The difference of two texts by words: what of each the other lacks, as [text, differs] parts.

const TOKENS = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;

export const MOST_CELLS = 4e6;

const isSpace = (token) => token.trim() === "";

/** The two lists of parts, and the share of words and marks that both texts have. `cells` bounds the time. */
export function difference(first, second, cells = MOST_CELLS) {
  const one = first.match(TOKENS) ?? [];
  const other = second.match(TOKENS) ?? [];
  const common = inCommon(one, other, cells);
  const words = (tokens) => tokens.filter((token) => !isSpace(token)).length;
  const kept = one.filter((token, place) => common[0][place] && !isSpace(token)).length;
  return {
    parts: [joined(one, common[0]), joined(other, common[1])],
    alike: (2 * kept) / Math.max(1, words(one) + words(other)),
  };
}

/** For each token of both lists whether it is in their longest common subsequence. */
function inCommon(one, other, cells) {
  const marks = [one.map(() => false), other.map(() => false)];
  let start = 0;
  while (start < Math.min(one.length, other.length) && one[start] === other[start]) start++;
  let end = 0;
  while (end < Math.min(one.length, other.length) - start && one.at(-1 - end) === other.at(-1 - end)) end++;
  marks[0].fill(true, 0, start).fill(true, one.length - end);
  marks[1].fill(true, 0, start).fill(true, other.length - end);
  const [rows, columns] = [one.length - end - start, other.length - end - start];
  // What is too long to compare in full differs as a whole.
  if (rows * columns > cells) return marks;
  const width = columns + 1;
  const longest = new Uint16Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = columns - 1; j >= 0; j--) {
      longest[i * width + j] =
        one[start + i] === other[start + j]
          ? longest[(i + 1) * width + j + 1] + 1
          : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < rows && j < columns; ) {
    if (one[start + i] === other[start + j]) marks[0][start + i++] = marks[1][start + j++] = true;
    else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) i++;
    else j++;
  }
  return marks;
}

/** Space between two different words belongs to the difference: marks are of phrases, not of single words. */
function joined(tokens, common) {
  const parts = [];
  for (const [place, token] of tokens.entries()) {
    const within = isSpace(token) && place > 0 && !common[place - 1] && common[place + 1] === false;
    const differs = !common[place] || within;
    if (parts.length > 0 && parts.at(-1)[1] === differs) parts.at(-1)[0] += token;
    else parts.push([token, differs]);
  }
  return parts;
}
