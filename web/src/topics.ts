// Which answers of the service come by its stream of events.

// The topic of a resource: of the table in src/serve/routes.c. A run that has ended (PID@..) changes no more, and has
// none.
export function topic_of(path: string): string | undefined {
  const [, id, of] = /^\/api\/v1\/targets\/(\d+)\/(stacks|memory|torch)$/.exec(path) ?? [],
    [, job] = /^\/api\/v1\/diagnosis\?target=(\d+)$/.exec(path) ?? [],
    [, name] = /^\/api\/v1\/(now|targets|alerts|hangs|diagnosis)$/.exec(path) ?? [];
  return id ? `${of}:${id}` : job ? `diagnosis:${job}` : name;
}
