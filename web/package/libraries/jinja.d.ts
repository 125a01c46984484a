// What glinfer uses of @huggingface/jinja, whose built file this stands beside.
export class Environment {
  constructor(parent?: Environment);
  [key: string]: any;
}
export class Interpreter {
  constructor(environment?: Environment);
  [key: string]: any;
}
export function parse(tokens: any[]): any;
export function tokenize(source: string, options?: Record<string, boolean>): any[];
