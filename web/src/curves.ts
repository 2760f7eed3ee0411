// Curves of a training: smoothed, laid over those of another run, and held against a limit.

// As TensorBoard's: an exponential mean without the pull of its first value. weight: 0 to below 1.
export function smoothed(values: (number | null)[], weight: number): (number | null)[] {
  if (!weight) return values;
  let sum = 0,
    scale = 0;
  return values.map((v) => {
    if (v === null) return null;
    sum = weight * sum + (1 - weight) * v;
    scale = weight * scale + (1 - weight);
    return sum / scale;
  });
}

// The values of another run at the steps of this one: of each step the newest.
export function laid_over(x: number[], steps: number[], values: (number | null)[]): (number | null)[] {
  const at = new Map<number, number | null>();
  steps.forEach((s, i) => at.set(s, values[i]));
  return x.map((s) => at.get(s) ?? null);
}

// The union of the steps of both, so that a longer run is drawn to its end.
export const both = (a: number[], b: number[]) => [...new Set([...a, ...b])].sort((p, q) => p - q);

export interface Crossed {
  n: number;
  first: number | null;
}

export function crossed(x: number[], values: (number | null)[], limit: number): Crossed {
  const at = x.filter((_, i) => values[i] !== null && values[i]! > limit);
  return { n: at.length, first: at.length ? at[0] : null };
}
