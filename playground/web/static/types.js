// @ts-check
/**
 * The shapes that travel from Python to this page (playground/frames.py documents the schema),
 * and the ones the modules hand to each other. Types only: nothing here runs.
 *
 * Words: a *position* counts tokens from 0 over prompt and continuation; a *row* is the query at a position;
 * the token at position t was chosen by row t-1; its *step* is t minus the prompt's length.
 *
 * @typedef {{id: number, text: string}} Token
 * @typedef {{name: string, setting: number|null, kept: number, mass: number, entropy: number}} Stage
 * @typedef {{pairs: number[][], inv_freq: number[], scaling: number, theta: number|null}} RopeTable
 * @typedef {{
 *   name: string, architecture: string, parameters: number, heads: number[], kv_heads: number[], head_dims: number[],
 *   value_dims: number[], query_dims: number[], kinds: string[],
 *   vocab_size: number, dtype: string, device: string, context_length: number|null, position_scheme: string,
 *   scalings?: number[],
 * }} ModelFacts
 * @typedef {{kind: string, layer: number, head: number, score: number}} HeadScore
 * @typedef {{
 *   max_new_tokens: number, temperature: number, top_k: number, top_p: number, min_p: number,
 *   repetition_penalty: number, penalty_last_n?: number, seed: number, order: string[],
 * }} Settings
 * @typedef {{first: number, decoding: Settings, stages: {name: string, setting: number|null}[]}} Era
 * @typedef {{
 *   v: number, run: string, seq: number, kind: 'begin', model: ModelFacts, heads: HeadScore[],
 *   rope: {layers: number[], tables: RopeTable[]}|null, rope_reason: string,
 *   cache: {kind: string, dtype: string, element_bytes: number, capacity: number},
 *   decoding: Settings, stages: {name: string, setting: number|null}[], eras: Era[],
 *   branch: {run: string, shared: number, step: number, forced: number}|null, prompt_length: number, planned: number,
 *   end_ids: number[], tokens: Token[],
 * }} Begin
 * @typedef {{
 *   index: number, id: number, text: string, probability: number, seconds: number, uniform: number|null, chance: number|null, forced?: boolean,
 *   mu: number|null,
 * }} Step
 * @typedef {{
 *   stages: Stage[], rank: number, lse: number, ids: Uint32Array, logits: Float32Array, probabilities: Float32Array,
 * }} Details  of a step; `probabilities` is [stages, ids] row by row; 0 means removed.
 * @typedef {Step & Details} ToldStep
 * @typedef {{k: number[], v: number[], positions: number, reserved: number, states: number}} CacheSize  bytes per layer, `reserved` and `states` bytes in all
 * @typedef {{first_token: number, decode: number, steps: number}} Clock  seconds
 * @typedef {{step: number, logits: Float32Array, ids: Uint32Array|null, lse: number}} Logits  ids null: whole vocabulary
 *
 * @typedef {Record<string, (request: object) => Promise<any>>} Server
 */
export {};
