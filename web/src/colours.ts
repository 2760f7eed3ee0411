// Colours of lines in a chart, by tokens.css.
export const COLOURS = ["--sq-3", "--sp-data", "--sp-fwd", "--st-gil", "--sp-opt", "--st-io", "--sq-5", "--sp-bwd"];
