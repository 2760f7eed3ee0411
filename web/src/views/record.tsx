// What a view shows where a process has no rows of a kind: why, and what brings them, here or at a terminal.
import { useState } from "preact/hooks";
import { ask, command, type ApiError, type Service } from "../api";
import { useLive } from "../live";
import { Blank, Command, why } from "../ui";

export function useReadOnly(): boolean {
  return !!useLive<Service>("/api/v1/service", Infinity).data?.read_only;
}

export function Act({ label, path, body, done }: { label: string; path: string; body?: string; done(): void }) {
  const [state, set] = useState<{ busy: boolean; error?: ApiError }>({ busy: false }), fixed = useReadOnly();
  const run = () => { set({ busy: true }); ask(path, { body: body ?? "" }).then(() => { set({ busy: false }); done(); }, (error) => set({ busy: false, error })); };
  return <>{state.error && <span class="bad">{why(state.error)} </span>}<button class="ctl main" disabled={fixed || state.busy} title={fixed ? "The service only reads: --read-only" : undefined} onClick={run}>{label}</button></>;
}

// probed: an agent is in the process.
export function NoRows({ what, target, probed, dead, on, done }: { what: string; target: string; probed: boolean; dead: boolean; on?: { text: string; setting: string }; done(): void }) {
  const id = encodeURIComponent(target);
  return (
    <Blank title={what}>
      {dead ? <p>It has ended, and left none.</p> : !probed ? (
        <><p>No agent is in this process. It can be brought in while the process runs; this takes a fraction of a millisecond of one thread.</p><Command text={command("-t", target, "inject")} /><p><Act label="Inject" path={`/api/v1/targets/${id}/inject`} done={done} /></p></>
      ) : on ? (
        <><p>{on.text}</p><Command text={command("-t", target, "config", on.setting)} /><p><Act label="Switch it on" path={`/api/v1/targets/${id}/settings`} body={on.setting} done={done} /></p></>
      ) : <p>Rows come once a second: a moment.</p>}
    </Blank>
  );
}
