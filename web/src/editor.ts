// The SQL editor: CodeMirror in a shadow root, where its styles are sheets and no <style> elements, which the page's
// policy forbids.
import {
  acceptCompletion,
  autocompletion,
  closeBrackets,
  closeCompletion,
  completionKeymap,
  completionStatus,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { PostgreSQL, sql } from "@codemirror/lang-sql";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState, Prec } from "@codemirror/state";
import { drawSelection, EditorView, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const look = EditorView.theme({
  "&": { backgroundColor: "var(--bg-code)", color: "var(--fg)", fontSize: "12px", maxHeight: "45vh" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "20px", overflow: "auto" },
  ".cm-content": { padding: "8px 0", caretColor: "var(--fg)", minHeight: "92px" },
  ".cm-gutters": { backgroundColor: "var(--bg-code)", color: "var(--fg-3)", border: "0" },
  ".cm-cursor": { borderLeftColor: "var(--fg)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--bg-sel)",
  },
  ".cm-tooltip": { backgroundColor: "var(--bg)", color: "var(--fg)", border: "1px solid var(--line-2)" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]": {
    backgroundColor: "var(--bg-sel)",
    color: "var(--fg)",
  },
  ".cm-completionDetail": { color: "var(--fg-3)", fontStyle: "normal" },
});

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--cd-key)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--cd-str)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--cd-num)" },
  { tag: tags.comment, color: "var(--cd-com)" },
  { tag: [tags.typeName, tags.standard(tags.name), tags.function(tags.variableName)], color: "var(--cd-fn)" },
]);

export type Catalog = Record<string, { label: string; detail: string; type: string }[]>;

export interface Editor {
  text(): string;
  set(text: string): void;
  insert(text: string): void;
  catalog(tables: Catalog): void;
  focus(): void;
  destroy(): void;
}

export function make_editor(host: HTMLElement, text: string, on: { run(): void; change(text: string): void }): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open", delegatesFocus: true }),
    language = new Compartment();
  const dialect = (schema: Catalog) => sql({ dialect: PostgreSQL, schema, upperCaseKeywords: true });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        Prec.highest(
          keymap.of([
            {
              key: "Mod-Enter",
              run: () => {
                on.run();
                return true;
              },
            },
            { key: "Tab", run: acceptCompletion },
            {
              key: "Escape",
              run: (v) => {
                if (completionStatus(v.state) !== null) return closeCompletion(v);
                v.contentDOM.blur();
                return false;
              },
            },
          ]),
        ),
        lineNumbers(),
        history(),
        drawSelection(),
        closeBrackets(),
        autocompletion(),
        language.of(dialect({})),
        syntaxHighlighting(colours),
        look,
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": "SQL" }),
        // Chromium replaces a selection of several lines with style attributes, which the policy forbids and the
        // console tells.
        EditorView.domEventHandlers({
          beforeinput(e, v) {
            if (e.inputType !== "insertText" || !e.data || v.state.selection.main.empty) return false;
            v.dispatch(
              v.state.update(v.state.replaceSelection(e.data), { userEvent: "input.type", scrollIntoView: true }),
            );
            e.preventDefault();
            return true;
          },
        }),
        keymap.of([...completionKeymap, ...historyKeymap, ...defaultKeymap]),
        EditorView.updateListener.of((u) => {
          if (u.docChanged) on.change(u.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    text: () => view.state.doc.toString(),
    set: (t) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: t } }),
    insert: (t) => {
      view.dispatch(view.state.replaceSelection(t));
      view.focus();
    },
    catalog: (tables) => view.dispatch({ effects: language.reconfigure(dialect(tables)) }),
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}
