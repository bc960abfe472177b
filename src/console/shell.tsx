import type { ComponentChildren } from 'preact';
import { useRef } from 'preact/hooks';
import type { ConsoleSessionRecord } from '../model/records.ts';
import { DESTINATIONS } from './destinations.ts';
import { count, shortCount } from './format.ts';
import icon from './icon.svg';
import { isHelpOpen } from './keys.tsx';
import { refresh, theme, zone } from './preferences.ts';
import {
  alarms,
  connection,
  isComplete,
  operations,
  queues,
  type StreamState,
  version,
} from './remote/live.ts';
import { address, go, href } from './route.ts';
import { mayAnywhere, signOut } from './session.ts';
import { Button } from './ui/button.tsx';
import { onData } from './ui/form.tsx';
import { Icon, type IconName } from './ui/icon.tsx';
import { Choices, Menu } from './ui/menu.tsx';
import { showError } from './ui/toasts.tsx';

const STREAM_LABELS: Readonly<Record<StreamState, readonly [IconName, string]>> = {
  connecting: ['clock', 'Connecting'],
  live: ['live', 'Live'],
  lost: ['warn', 'Connection lost'],
  paused: ['paused', 'Paused'],
  resting: ['paused', 'Resting'],
};

export function Shell({
  record,
  children,
}: {
  readonly record: ConsoleSessionRecord;
  readonly children: ComponentChildren;
}) {
  const sidebar = useRef<HTMLElement>(null);
  return (
    <div class="shell">
      <Button class="visually-hidden" onClick={focusPage}>
        Skip to the page
      </Button>
      <aside ref={sidebar} id="side" class="side" popover="auto">
        <a class="brand" href={href([])}>
          <img src={icon} alt="" /> Quayside
        </a>
        <Navigation
          onChoose={() => sidebar.current?.matches(':popover-open') && sidebar.current.hidePopover()}
        />
        <footer>
          Version {record.server.version}
          <br />
          {location.host}
        </footer>
      </aside>
      <header class="top">
        <Button icon="menu" class="quiet square open-nav" popovertarget="side" aria-label="Navigation" />
        <Find />
        <RefreshChoice />
        <span class="visually-hidden" role="status">
          {connection.value === 'lost' && STREAM_LABELS.lost[1]}
        </span>
        <Menu
          title="Appearance and time"
          className="quiet square"
          icon={theme.value === 'dark' ? 'moon' : 'sun'}
        >
          <Choices
            name="Appearance"
            value={theme.value}
            options={{ system: 'As the system', light: 'Light', dark: 'Dark' }}
            onChoose={(value) => (theme.value = value)}
          />
          <Choices
            name="Times"
            value={zone.value}
            options={{ local: 'Local time', utc: 'UTC' }}
            onChoose={(value) => (zone.value = value)}
          />
        </Menu>
        <Menu
          title={`User ${record.user}`}
          className="quiet"
          icon="users"
          label={<span class="wide-only">{record.user}</span>}
        >
          <Button icon="keyboard" onClick={() => (isHelpOpen.value = true)}>
            Keys
          </Button>
          <hr />
          <Button icon="exit" onClick={() => void signOut().catch(showError)}>
            Sign out
          </Button>
        </Menu>
      </header>
      <main id="page" class="page" tabIndex={-1}>
        {children}
      </main>
    </div>
  );
}

function focusPage(): void {
  document.getElementById('page')?.focus();
}

function Navigation({ onChoose }: { readonly onChoose: () => void }) {
  const [first = ''] = address.value.parts;
  return (
    <nav aria-label="Pages">
      <ul>
        {DESTINATIONS.map(({ to, title, icon: name, parts }) => (
          <li key={to}>
            <a
              href={href(to === '' ? [] : [to])}
              aria-current={parts.includes(first) ? 'page' : undefined}
              onClick={onChoose}
            >
              <Icon name={name} /> {title} <NavigationFigure of={to} />
            </a>
          </li>
        ))}
      </ul>
    </nav>
  );
}

/** What is worth knowing of a page before it is opened. */
function NavigationFigure({ of }: { readonly of: string }) {
  version.value;
  if (of === '') {
    return <NavigationBadge level="bad" value={alarms.size} unit={alarms.size === 1 ? 'alarm' : 'alarms'} />;
  }
  if (of === 'queues') {
    const isKnown = isComplete.value && mayAnywhere('read');
    return isKnown ? <span class="figure">{shortCount(queues.size)}</span> : null;
  }
  if (of === 'operations') {
    const running = [...operations.values()].filter(({ state }) => state === 'running').length;
    return <NavigationBadge level="accent" value={running} unit="running" />;
  }
  return null;
}

/** A number whose unit does not fit next to the title of its page, except for screen readers and in a tooltip. */
function NavigationBadge({
  level,
  value,
  unit,
}: {
  readonly level: 'bad' | 'accent';
  readonly value: number;
  readonly unit: string;
}) {
  if (value === 0) return null;
  return (
    <span class={`badge ${level} figure`} title={`${count(value)} ${unit}`}>
      {shortCount(value)}
      <span class="visually-hidden"> {unit}</span>
    </span>
  );
}

function Find() {
  const find = onData((data, form) => {
    go(href(['queues'], { filter: String(data.get('filter')) }));
    form.reset();
  });
  return (
    // biome-ignore lint/a11y/useSemanticElements: a form inside `search` would be two landmarks of one thing
    <form class="find" role="search" onSubmit={find}>
      <input
        type="search"
        name="filter"
        data-find
        style={{ width: '100%' }}
        placeholder="Find a queue  ( / )"
        aria-label="Find a queue"
        autocomplete="off"
      />
    </form>
  );
}

function RefreshChoice() {
  const [name, text] = STREAM_LABELS[connection.value];
  const isInterval = connection.value === 'live' && refresh.value !== 'live';
  const label = isInterval ? `Every ${refresh.value} s` : text;
  return (
    <Menu
      title={`Refresh: ${label}`}
      className={connection.value === 'lost' ? 'quiet lost' : 'quiet'}
      icon={isInterval ? 'clock' : name}
      label={<span class="wide-only">{label}</span>}
    >
      <Choices
        name="Refresh"
        value={refresh.value}
        options={{ live: 'Live', '10': 'Every 10 s', '60': 'Every minute', paused: 'Paused' }}
        onChoose={(value) => (refresh.value = value)}
      />
    </Menu>
  );
}
