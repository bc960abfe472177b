import { render } from 'preact';
import { App } from './app.tsx';
import { loadFirst } from './pages/page.tsx';
import { follow } from './remote/live.ts';
import { resume } from './session.ts';
import './styles/index.css';

// Send requests before rendering.
void resume();
loadFirst();
follow();
render(<App />, document.body);
