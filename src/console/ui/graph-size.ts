/** Size of a place in the graph of exchanges, in pixels. In a file of its own, because `graph.ts` is loaded later. */
export const PLACE_WIDTH = 168;
export const PLACE_HEIGHT = 44;
