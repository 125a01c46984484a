// What glinfer uses of @huggingface/tokenizers, whose built file this stands beside.
type Settings = Record<string, any>;
declare class TokenizerModel {
  constructor(settings: Settings, ...more: any[]);
  [key: string]: any;
}
export class BPE extends TokenizerModel {}
export class Unigram extends TokenizerModel {}
export class WordPiece extends TokenizerModel {}
export class SplitPreTokenizer {
  constructor(settings: Settings);
  [key: string]: any;
}
