// What a view shows that is about one process or job while none is chosen, and why a process gives no answer.
import type { ComponentChildren } from "preact";
import { command, type ApiError, type Target } from "./api";
import { bytes, job_name } from "./format";
import { useLive } from "./live";
import { href, useChosen, useRoute, type Chosen } from "./route";
import { Blank, Command, Loading, why } from "./ui";

// probed: an agent is in it, as far as is known: a list that is still to come takes none away.
export function useTarget(): { chosen: Chosen; target: Target | undefined; dead: boolean; probed: boolean } | null {
  const chosen = useChosen(),
    { data } = useLive<Target[]>("/api/v1/targets", 2000);
  if (!chosen) return null;
  const target = data?.find((t) => String(t.pid) === chosen.target || t.id === chosen.target);
  // A run by its id may be an old one, which is not listed.
  const dead = target ? target.state === "dead" || target.state === "archived" : chosen.target.includes("@");
  return { chosen, target, dead, probed: !dead && target?.state !== "python" };
}

const seen = new Set<number>();

// Above the view: what was chosen has ended while it was looked at, and what is left of it.
export function Ended({ targets }: { targets: Target[] | undefined }) {
  const chosen = useChosen(),
    { view } = useRoute(),
    pid = chosen && !chosen.all && /^\d+$/.test(chosen.target) ? Number(chosen.target) : null;
  if (pid === null || !targets) return null;
  if (targets.some((t) => t.pid === pid && (t.state === "probed" || t.state === "python"))) {
    seen.add(pid);
    return null;
  }
  const [left] = targets.filter((t) => t.pid === pid).sort((a, b) => (a.id < b.id ? 1 : -1));
  const title = left || seen.has(pid) ? `Process ${pid} has ended.` : `No Python process ${pid} of yours runs here.`;
  return (
    <div class="note odd" role="status">
      <span>
        <b>{title}</b>{" "}
        {left ? (
          <>
            What it left, to its last second:{" "}
            <a href={href(view, { target: left.id, all: null })}>
              {job_name(left.command)}, {left.id}
            </a>
            .
          </>
        ) : seen.has(pid) ? (
          "No agent was in it: it left nothing."
        ) : (
          ""
        )}
      </span>
    </div>
  );
}

export function NeedTarget({ what }: { what: string }) {
  const { view } = useRoute(),
    chosen = useChosen(),
    { data } = useLive<Target[]>("/api/v1/targets", 2000);
  if (!data) return <Loading what="Looking for processes." />;
  const of = data.filter((t) => !chosen?.all || t.command.includes(chosen.target));
  return (
    <div class="body">
      <div class="verdict">
        <span class="mark none" />
        <div>
          <h1>{what}</h1>
          <p>
            {chosen?.all ? "Choose one of its processes." : "Choose a process: here, in the header, or with the key t."}
          </p>
        </div>
      </div>
      <table>
        <thead>
          <tr>
            <th>Process</th>
            <th>Job</th>
            <th>State</th>
            <th class="num opt">Memory</th>
          </tr>
        </thead>
        <tbody>
          {of.map((t) => {
            const ended = t.state === "dead" || t.state === "archived",
              to = href(view, { target: ended ? t.id : String(t.pid), all: null });
            return (
              <tr key={t.id}>
                <td>
                  <a href={to}>
                    {t.rank !== null ? `rank ${t.rank}, ` : ""}pid {t.pid}
                  </a>
                </td>
                <td class="cut" title={t.command}>
                  {job_name(t.command)} <span class="dim mono">{t.command}</span>
                </td>
                <td>{ended ? "ended" : t.state}</td>
                <td class="num opt">{bytes((t.memory_mb ?? 0) * 2 ** 20)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

export function NoAnswer({
  error,
  title,
  target,
  children,
}: {
  error: ApiError;
  title: string;
  target: string;
  children?: ComponentChildren;
}) {
  return (
    <Blank title={title}>
      <p>{why(error)}</p>
      {children}
      <p>What stands in the way of reading it:</p>
      <Command text={command("-t", target, "doctor")} />
    </Blank>
  );
}
