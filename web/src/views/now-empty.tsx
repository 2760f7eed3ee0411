// Now without a process: what one does first.
import type { Target } from "../api";
import { some } from "../format";
import { href, type Chosen } from "../route";
import { Blank, Command } from "../ui";

export function Nobody({ chosen, targets }: { chosen: Chosen | null; targets: Target[] | undefined }) {
  const ended = (targets ?? []).filter((t) => t.state === "dead" || t.state === "archived").length;
  return (
    <Blank
      title={
        chosen ? `No process that runs fits ${chosen.target}.` : "No Python process of yours is running on this node."
      }
    >
      <p>A process appears here by itself within 2 s of its start, and its stacks need nothing else.</p>
      <p>To have its tables too, from its first line on, start it so:</p>
      <Command text="probing launch -- python train.py" />
      <p>
        Or set <code>PROBING=1</code> in its environment, also of <code>torchrun</code>, which hands it on to all ranks.
      </p>
      {ended > 0 && (
        <p>
          <a href={href("runs", { target: null, all: null })}>Open one of {some(ended, "run")} that have ended</a>.
        </p>
      )}
    </Blank>
  );
}
