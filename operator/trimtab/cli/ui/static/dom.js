// The page is built of elements and texts alone: nothing that a model or a tenant wrote is ever read as markup.

export const { h, render, Component } = globalThis.preact;
export const { useEffect, useLayoutEffect, useMemo, useRef, useState } = globalThis.preactHooks;
export const html = globalThis.htm.bind(h);
