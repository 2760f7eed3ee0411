// What a view shows where a process has no rows of a kind: why, and what brings them, here or at a terminal.
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, command, type ApiError, type Service } from "../api";
import { useKeys } from "../keys";
import { useLive } from "../live";
import { Blank, Command, why } from "../ui";

export function useReadOnly(): boolean {
  return !!useLive<Service>("/api/v1/service", Infinity).data?.read_only;
}

interface ActProps {
  label: string;
  path: string;
  body?: string;
  plain?: boolean;
  danger?: boolean; // it takes something away, or holds the job
  confirm?: string;
  done(said: string): void;
  failed?(): void;
}

// A button that changes something. confirm: what it would do, asked before it does.
export function Act({ label, path, body, plain, danger, confirm, done, failed }: ActProps) {
  const [state, set] = useState<{ busy: boolean; asks?: boolean; error?: ApiError }>({ busy: false }),
    fixed = useReadOnly(),
    no = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (state.asks) no.current?.focus();
  }, [state.asks]);
  useKeys(state.asks ? { Escape: () => set({ busy: false }) } : {});
  const run = () => {
    set({ busy: true });
    ask(path, { body: body ?? "" })
      .then((a) => a.text())
      .then(
        (said) => {
          set({ busy: false });
          done(said);
        },
        (error) => {
          set({ busy: false, error });
          failed?.();
        },
      );
  };
  const button = (
    <button
      class={`ctl${danger ? " danger" : plain ? "" : " main"}`}
      disabled={fixed || state.busy}
      title={fixed ? "The service only reads: --read-only" : undefined}
      onClick={() => (confirm && !state.asks ? set({ busy: false, asks: true }) : run())}
    >
      {label}
    </button>
  );
  if (state.asks)
    return (
      <span class="asks" role="alertdialog" aria-label={label}>
        <span>{confirm}</span> {button}{" "}
        <button class="ctl" ref={no} onClick={() => set({ busy: false })}>
          Cancel
        </button>
      </span>
    );
  return (
    <>
      {state.error && <span class="bad">{why(state.error)} </span>}
      {button}
    </>
  );
}

// probed: an agent is in the process.
export function NoRows({
  what,
  target,
  probed,
  dead,
  on,
  done,
}: {
  what: string;
  target: string;
  probed: boolean;
  dead: boolean;
  on?: { text: string; setting: string };
  done(): void;
}) {
  const id = encodeURIComponent(target);
  return (
    <Blank title={what}>
      {dead ? (
        <p>It has ended, and left none.</p>
      ) : !probed ? (
        <>
          <p>
            No agent is in this process. It can be brought in while the process runs: one thread is held for a fraction
            of a millisecond, and from then on the agent takes well below 1% of a core.
          </p>
          <Command text={command("-t", target, "inject")} />
          <p>
            <Act label="Inject" path={`/api/v1/targets/${id}/inject`} done={done} />
          </p>
        </>
      ) : on ? (
        <>
          <p>{on.text}</p>
          <Command text={command("-t", target, "config", on.setting)} />
          <p>
            <Act label="Switch it on" path={`/api/v1/targets/${id}/settings`} body={on.setting} done={done} />
          </p>
        </>
      ) : (
        <p>Rows come once a second: a moment.</p>
      )}
    </Blank>
  );
}
