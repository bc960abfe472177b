/** Of a place in the graph of exchanges, in pixels. What places them is loaded later than what draws them. */
export const PLACE_WIDTH = 168;
export const PLACE_HEIGHT = 44;
