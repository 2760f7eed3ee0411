// What probing costs the chosen process, as measured: CPU of the agent's threads since the last look, and the bytes of its tables.
import { useRef } from "preact/hooks";
import { with_args, type Row } from "./api";
import { bytes } from "./format";
import { useLive } from "./live";
import { useChosen } from "./route";

const SQL = `SELECT (SELECT sum(cpu_user_s + cpu_system_s) FROM system.threads WHERE name LIKE 'probing%') AS cpu,
  (SELECT coalesce(sum(bytes), 0) FROM probing.tables WHERE in_target) AS bytes`;

export function Cost() {
  const chosen = useChosen(), one = chosen && !chosen.all && /^\d+$/.test(chosen.target) ? chosen.target : null;
  const { data, at, error } = useLive<Row[]>(one && with_args("/api/v1/query", { target: one }), 5000, SQL);
  const last = useRef({ cpu: NaN, at: 0, of: "", share: NaN }), cpu = data?.[0]?.cpu as number | null | undefined;
  if (!one) return null;
  if (last.current.of !== one) last.current = { cpu: NaN, at: 0, of: one, share: NaN };
  if (cpu !== null && cpu !== undefined && at > last.current.at) {
    if (last.current.at) last.current.share = Math.max(0, (cpu - last.current.cpu) / ((at - last.current.at) / 1000));
    last.current = { ...last.current, cpu, at };
  }
  if (error || !data) return null;
  return (
    <span class="cost opt" title="CPU time of the agent's threads in the process over the last 5 s, and memory of its tables">
      Cost to the job: <b>{cpu === null ? "nothing is in it" : Number.isNaN(last.current.share) ? "measuring" : `${(100 * last.current.share).toFixed(1)}% CPU, ${bytes(Number(data[0].bytes))}`}</b>
    </span>
  );
}
