import { render } from 'preact';
import { App } from './app.tsx';
import { follow } from './remote/live.ts';
import { resume } from './session.ts';
import './styles/index.css';

follow();
render(<App />, document.body);
void resume();
