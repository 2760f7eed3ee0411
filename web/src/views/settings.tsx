// Settings: of one process, with where each value comes from; its probes; the agent in and out.
import { useState } from "preact/hooks";
import { ApiError, ask, command, curl } from "../api";
import { useLive } from "../live";
import { NeedTarget, NoAnswer, useTarget } from "../pick";
import { put, useRoute } from "../route";
import { Foot, Loading, Name, why } from "../ui";
import { Act, useReadOnly } from "./record";

interface Setting {
  name: string;
  value: string | null;
  default_value: string | null;
  unit: string | null;
  origin: string;
  explanation: string;
}
interface Probe {
  name: string;
  state: string;
  description: string | null;
  records: string;
}

function Value({ of, target, changed }: { of: Setting; target: string; changed(): void }) {
  const [text, set] = useState<string | null>(null),
    [error, fail] = useState<ApiError>(),
    fixed = useReadOnly();
  const save = () =>
    ask(`/api/v1/targets/${encodeURIComponent(target)}/settings`, { body: `${of.name}=${text}` }).then(() => {
      set(null);
      fail(undefined);
      changed();
    }, fail);
  return (
    <>
      <input
        class="ctl mono"
        size={18}
        disabled={fixed}
        title={fixed ? "The service only reads: --read-only" : undefined}
        aria-label={of.name}
        value={text ?? of.value ?? ""}
        onInput={(e) => set(e.currentTarget.value)}
        onKeyDown={(e) => {
          if (e.key === "Enter" && text !== null) void save();
          if (e.key === "Escape") set(null);
        }}
      />
      {text !== null && text !== of.value && (
        <>
          {" "}
          <button class="ctl main" onClick={() => void save()}>
            Save
          </button>
        </>
      )}
      {error && <div class="bad">{why(error)}</div>}
    </>
  );
}

export default function Settings() {
  const about = useTarget(),
    { args } = useRoute(),
    one = about && !about.chosen.all ? about.chosen.target : null,
    id = one ? encodeURIComponent(one) : "",
    find = args.get("find") ?? "";
  const probed = !!about?.probed,
    settings = useLive<Setting[]>(one && !about?.dead ? `/api/v1/targets/${id}/settings` : null, 5000),
    probes = useLive<Probe[]>(one && probed ? `/api/v1/targets/${id}/probes` : null, 5000);
  if (!about || !one) return <NeedTarget what="Settings of a process, and what records in it." />;
  const shown = (settings.data ?? []).filter((s) =>
    `${s.name} ${s.explanation}`.toLowerCase().includes(find.toLowerCase()),
  );
  return (
    <>
      <div class="body">
        {about.dead ? (
          <NoAnswer
            error={new ApiError(422, "", "the process has ended")}
            title="It has ended: nothing can be set."
            target={one}
          />
        ) : settings.error && !settings.data ? (
          <NoAnswer error={settings.error} title="Its settings cannot be read." target={one} />
        ) : !settings.data ? (
          <Loading what="Reading its settings." />
        ) : (
          <>
            <div class="verdict">
              <span class="mark none" />
              <div>
                <h1>
                  {probed
                    ? "An agent is in this process."
                    : "No agent is in this process: what is set counts once there is one."}
                </h1>
                <p>
                  {probed
                    ? "Detaching takes out its threads, sockets and tables; what was recorded is gone unless " +
                      "it is archived."
                    : "Stacks, flame graphs and memory are read from outside and need none."}
                </p>
              </div>
              <span class="gap" />
              <div class="acts">
                {probed ? (
                  <Act
                    label="Detach"
                    danger
                    confirm={
                      "Takes the agent out: its threads, sockets and tables. What it recorded is gone " +
                      "unless it is archived."
                    }
                    path={`/api/v1/targets/${id}/detach`}
                    done={() => probes.again()}
                  />
                ) : (
                  <Act label="Inject" path={`/api/v1/targets/${id}/inject`} done={() => probes.again()} />
                )}
              </div>
            </div>
            {probes.data && (
              <>
                <div class="sec">
                  <h2>Probes</h2>
                </div>
                <table>
                  <thead>
                    <tr>
                      <th>Name</th>
                      <th>State</th>
                      <th>Records</th>
                    </tr>
                  </thead>
                  <tbody>
                    {probes.data.map((p) => (
                      <tr key={p.name}>
                        <td class="mono">
                          <Name of={p.name} />
                        </td>
                        <td>{p.state}</td>
                        <td class="wrap">
                          {p.records}
                          {p.description ? ` (${p.description})` : ""}
                        </td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </>
            )}
            <div class="bar">
              <input
                class="ctl"
                data-search
                placeholder="Filter ( / )"
                aria-label="Filter settings"
                value={find}
                onInput={(e) => put({ find: e.currentTarget.value })}
              />
            </div>
            <table>
              <thead>
                <tr>
                  <th>Setting</th>
                  <th>Value</th>
                  <th class="opt">From</th>
                  <th class="opt">What it is</th>
                </tr>
              </thead>
              <tbody>
                {shown.map((s) => (
                  <tr key={s.name}>
                    <td class="mono">
                      <Name of={s.name} />
                    </td>
                    <td>
                      <Value of={s} target={one} changed={() => settings.again()} />{" "}
                      <span class="dim">{s.unit ?? ""}</span>
                    </td>
                    <td class={`opt ${s.origin === "default" ? "dim" : "strong"}`}>{s.origin}</td>
                    <td class="opt wrap mid">{s.explanation}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </>
        )}
      </div>
      <Foot
        command={command("-t", one, "config")}
        curl={curl(`/api/v1/targets/${id}/settings`)}
        sql="SELECT * FROM probing.config"
      />
    </>
  );
}
