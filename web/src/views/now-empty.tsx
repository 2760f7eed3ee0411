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
      <p>A process appears here by itself within 2 s of its start. To see one from its first line on:</p>
      <Command text="PROBING=1 python train.py" />
      {ended > 0 && (
        <p>
          <a href={href("runs", { target: null, all: null })}>Open one of {some(ended, "run")} that have ended</a>.
        </p>
      )}
    </Blank>
  );
}
