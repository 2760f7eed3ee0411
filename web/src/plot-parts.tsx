// What belongs to charts and needs no chart library.
export function Legend({ of }: { of: { name: string; token: string }[] }) {
  return <span class="keys">{of.map((s) => <span class="key" key={s.name}><i style={{ background: `var(${s.token})` }} />{s.name}</span>)}</span>;
}

export const COLOURS = ["--sq-3", "--sp-data", "--sp-fwd", "--st-gil", "--sp-opt", "--st-io", "--sq-5", "--sp-bwd"];
