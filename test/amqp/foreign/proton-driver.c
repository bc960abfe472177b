/* Drives Debian's libqpid-proton with the commands described in `driven.ts`. One connection, one socket, no threads. */

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <proton/condition.h>
#include <proton/connection.h>
#include <proton/connection_driver.h>
#include <proton/delivery.h>
#include <proton/disposition.h>
#include <proton/link.h>
#include <proton/message.h>
#include <proton/sasl.h>
#include <proton/session.h>
#include <proton/terminus.h>
#include <proton/transport.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES (1 << 20)
#define WORDS 64

static pn_connection_driver_t driver;
static pn_session_t *session;
static pn_link_t *receiver;
static struct { pn_link_t *link; char address[256]; } senders[64];
static int sender_count;
static pn_delivery_t *held;
static int sock = -1;
static unsigned tags;
static char failure[512];

/* Results of events, kept until a command asks for them. */
static pn_delivery_t *updated;
static struct { pn_delivery_t *delivery; char *bytes; size_t size; } incoming[4096];
static int incoming_first, incoming_end;
static bool is_closed;

static void note(const char *what, pn_condition_t *condition) {
  const char *name = condition && pn_condition_is_set(condition) ? pn_condition_get_name(condition) : "none";
  snprintf(failure, sizeof failure, "%s %s", what, name);
}

/* A link exposes only its current delivery, so its bytes are copied before the link advances. */
static void take(pn_delivery_t *delivery) {
  size_t size = pn_delivery_pending(delivery);
  char *bytes = malloc(size + 1);
  ssize_t got = pn_link_recv(pn_delivery_link(delivery), bytes, size);
  int at = incoming_end++ % 4096;
  incoming[at].delivery = delivery;
  incoming[at].bytes = bytes;
  incoming[at].size = got > 0 ? (size_t)got : 0;
  pn_link_advance(pn_delivery_link(delivery));
}

static void handle(pn_event_t *event) {
  pn_delivery_t *delivery = pn_event_delivery(event);
  switch (pn_event_type(event)) {
    case PN_DELIVERY:
      if (pn_link_is_sender(pn_delivery_link(delivery))) {
        if (pn_delivery_remote_state(delivery)) updated = delivery;
      } else if (pn_delivery_readable(delivery) && !pn_delivery_partial(delivery)) {
        take(delivery);
      }
      break;
    case PN_LINK_REMOTE_CLOSE:
      note("detached", pn_link_remote_condition(pn_event_link(event)));
      pn_link_close(pn_event_link(event));
      break;
    case PN_CONNECTION_REMOTE_CLOSE:
      note("closed", pn_connection_remote_condition(pn_event_connection(event)));
      pn_connection_close(pn_event_connection(event));
      break;
    case PN_TRANSPORT_ERROR:
      note("transport", pn_transport_condition(pn_event_transport(event)));
      break;
    case PN_TRANSPORT_CLOSED:
      is_closed = true;
      break;
    default:
      break;
  }
}

static void handle_all(void) {
  pn_event_t *event;
  while ((event = pn_connection_driver_next_event(&driver)) != NULL) handle(event);
}

static void write_all(void) {
  for (;;) {
    handle_all();
    pn_bytes_t bytes = pn_connection_driver_write_buffer(&driver);
    if (bytes.size == 0) return;
    ssize_t written = send(sock, bytes.start, bytes.size, MSG_NOSIGNAL);
    if (written <= 0) {
      pn_connection_driver_write_close(&driver);
      return;
    }
    pn_connection_driver_write_done(&driver, (size_t)written);
  }
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Whether bytes arrived before the connection's next timer is due. */
static bool wait_for_bytes(int64_t due) {
  struct pollfd one = {.fd = sock, .events = POLLIN};
  int64_t left = due - now_ms();
  return poll(&one, 1, due == 0 ? -1 : left < 0 ? 0 : (int)left) > 0;
}

/* Sends pending output, including heart-beats, and waits for bytes or the next timer. */
static void turn(void) {
  int64_t due = pn_transport_tick(driver.transport, now_ms());
  write_all();
  if (!is_closed && !wait_for_bytes(due)) return;
  pn_rwbytes_t room = pn_connection_driver_read_buffer(&driver);
  if (room.size > 0) {
    ssize_t got = recv(sock, room.start, room.size, 0);
    if (got > 0) pn_connection_driver_read_done(&driver, (size_t)got);
    else pn_connection_driver_read_close(&driver);
  }
  handle_all();
}

static bool failed(void) { return failure[0] != 0 || is_closed; }

static size_t from_hex(const char *hex, char *bytes) {
  size_t length = strcmp(hex, "-") == 0 ? 0 : strlen(hex) / 2;
  for (size_t i = 0; i < length; i++) {
    char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};
    bytes[i] = (char)strtoul(digits, NULL, 16);
  }
  return length;
}

static int dial(const char *port) {
  struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
  if (getaddrinfo("127.0.0.1", port, &hints, &found) != 0) return -1;
  int one = socket(found->ai_family, found->ai_socktype, 0);
  int result = connect(one, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return result == 0 ? one : -1;
}

/* open amqp://127.0.0.1:<port> <user> <password> <silence, ms> */
static void open_connection(char **words) {
  sock = dial(strrchr(words[0], ':') + 1);
  is_closed = false;
  sender_count = incoming_first = incoming_end = 0;
  pn_connection_driver_init(&driver, NULL, NULL);
  pn_transport_set_idle_timeout(driver.transport, (pn_millis_t)atoi(words[3]));
  pn_connection_set_container(driver.connection, "proton-c");
  pn_connection_set_user(driver.connection, words[1]);
  pn_connection_set_password(driver.connection, words[2]);
  pn_sasl_t *sasl = pn_sasl(driver.transport);
  pn_sasl_set_allow_insecure_mechs(sasl, true);
  pn_sasl_allowed_mechs(sasl, "PLAIN");
  pn_connection_open(driver.connection);
  session = pn_session(driver.connection);
  pn_session_open(session);
  while (!(pn_connection_state(driver.connection) & PN_REMOTE_ACTIVE) && !failed()) turn();
}

static pn_link_t *attach_sender(const char *address) {
  for (int i = 0; i < sender_count; i++) {
    if (strcmp(senders[i].address, address) == 0) return senders[i].link;
  }
  int at = sender_count++;
  snprintf(senders[at].address, sizeof senders[at].address, "%s", address);
  senders[at].link = pn_sender(session, address);
  pn_terminus_set_address(pn_link_target(senders[at].link), address);
  pn_link_open(senders[at].link);
  return senders[at].link;
}

static const char *outcome_of(uint64_t state) {
  switch (state) {
    case PN_ACCEPTED: return "accepted";
    case PN_REJECTED: return "rejected";
    case PN_RELEASED: return "released";
    case PN_MODIFIED: return "modified";
    default: return "none";
  }
}

static void put_properties(pn_data_t *properties, char **words, int count) {
  if (count == 0) return;
  pn_data_put_map(properties);
  pn_data_enter(properties);
  for (int i = 0; i < count; i++) {
    char *value = strchr(words[i], '=') + 1;
    pn_data_put_string(properties, pn_bytes((size_t)(value - words[i] - 1), words[i]));
    pn_data_put_string(properties, pn_bytes(strlen(value), value));
  }
  pn_data_exit(properties);
}

/* send <address> <body> <content type> <name=value>... */
static const char *send_message(char **words, int count) {
  static char body[LINE_BYTES], encoded[LINE_BYTES + 65536];
  pn_link_t *link = attach_sender(words[0]);
  while (pn_link_credit(link) == 0 && !failed()) turn();
  pn_message_t *message = pn_message();
  pn_message_set_inferred(message, true);
  pn_data_put_binary(pn_message_body(message), pn_bytes(from_hex(words[1], body), body));
  if (strcmp(words[2], "-") != 0) pn_message_set_content_type(message, words[2]);
  put_properties(pn_message_properties(message), words + 3, count - 3);
  size_t size = sizeof encoded;
  pn_message_encode(message, encoded, &size);
  pn_message_free(message);
  tags++;
  pn_delivery_t *delivery = pn_delivery(link, pn_dtag((const char *)&tags, sizeof tags));
  pn_link_send(link, encoded, size);
  pn_link_advance(link);
  updated = NULL;
  while (updated != delivery && !failed()) turn();
  if (updated != delivery) return "none";
  const char *outcome = outcome_of(pn_delivery_remote_state(delivery));
  pn_delivery_settle(delivery);
  return outcome;
}

/* receive <address> <credit> settled|unsettled <group> */
static void receive_from(char **words) {
  static int links;
  char name[32];
  snprintf(name, sizeof name, "receiver-%d", ++links);
  receiver = pn_receiver(session, name);
  pn_terminus_set_address(pn_link_source(receiver), words[0]);
  pn_link_set_snd_settle_mode(receiver, strcmp(words[2], "settled") == 0 ? PN_SND_SETTLED : PN_SND_UNSETTLED);
  if (strcmp(words[3], "-") != 0) {
    pn_data_t *filter = pn_terminus_filter(pn_link_source(receiver));
    pn_data_put_map(filter);
    pn_data_enter(filter);
    pn_data_put_symbol(filter, pn_bytes(10, "x-ks-group"));
    pn_data_put_string(filter, pn_bytes(strlen(words[3]), words[3]));
    pn_data_exit(filter);
  }
  pn_link_open(receiver);
  pn_link_flow(receiver, atoi(words[1]));
  while (!(pn_link_state(receiver) & PN_REMOTE_ACTIVE) && !failed()) turn();
}

static void print_body(pn_data_t *body) {
  pn_data_rewind(body);
  pn_bytes_t bytes = pn_data_next(body) ? pn_data_get_bytes(body) : pn_bytes(0, NULL);
  if (bytes.size == 0) printf("-");
  for (size_t i = 0; i < bytes.size; i++) printf("%02x", (unsigned char)bytes.start[i]);
}

static void print_properties(pn_data_t *properties) {
  pn_data_rewind(properties);
  if (!pn_data_next(properties) || pn_data_type(properties) != PN_MAP) return;
  pn_data_enter(properties);
  while (pn_data_next(properties)) {
    pn_bytes_t name = pn_data_get_bytes(properties);
    pn_data_next(properties);
    pn_bytes_t value = pn_data_get_bytes(properties);
    printf(" %.*s=%.*s", (int)name.size, name.start, (int)value.size, value.start);
  }
}

/* next -> <body> <content type> <delivery count> <name=value>... */
static void next_message(void) {
  while (incoming_first == incoming_end && !failed()) turn();
  if (incoming_first == incoming_end) return;
  int at = incoming_first++ % 4096;
  held = incoming[at].delivery;
  pn_message_t *message = pn_message();
  pn_message_decode(message, incoming[at].bytes, incoming[at].size);
  free(incoming[at].bytes);
  const char *type = pn_message_get_content_type(message);
  printf("ok ");
  print_body(pn_message_body(message));
  printf(" %s %u", type == NULL ? "-" : type, pn_message_get_delivery_count(message));
  print_properties(pn_message_properties(message));
  printf("\n");
  pn_message_free(message);
}

static void settle(const char *outcome) {
  uint64_t states[] = {PN_ACCEPTED, PN_REJECTED, PN_RELEASED, PN_MODIFIED};
  for (int i = 0; i < 4; i++) {
    if (strcmp(outcome_of(states[i]), outcome) != 0) continue;
    if (states[i] == PN_MODIFIED) pn_disposition_set_failed(pn_delivery_local(held), true);
    pn_delivery_update(held, states[i]);
  }
  pn_delivery_settle(held);
  write_all();
}

/* Waits until the library has noticed the lost connection. */
static void lose(void) {
  while (!is_closed) turn();
  close(sock);
  pn_connection_driver_destroy(&driver);
}

static void close_connection(void) {
  pn_connection_close(driver.connection);
  while (!is_closed && !(pn_connection_state(driver.connection) & PN_REMOTE_CLOSED)) turn();
  write_all();
  close(sock);
}

static void run(char **words, int count) {
  const char *verb = words[0];
  failure[0] = 0;
  if (strcmp(verb, "next") == 0) {
    next_message();
    if (failed()) printf("error %s\n", failure);
    return;
  }
  const char *answer = "";
  if (strcmp(verb, "open") == 0) open_connection(words + 1);
  else if (strcmp(verb, "send") == 0) answer = send_message(words + 1, count - 1);
  else if (strcmp(verb, "receive") == 0) receive_from(words + 1);
  else if (strcmp(verb, "settle") == 0) settle(words[1]);
  else if (strcmp(verb, "lost") == 0) lose();
  else if (strcmp(verb, "close") == 0) close_connection();
  bool may_end = strcmp(verb, "lost") == 0 || strcmp(verb, "close") == 0;
  if (failed() && !may_end) printf("error %s\n", failure);
  else printf("ok %s\n", answer);
}

int main(void) {
  static char line[LINE_BYTES];
  while (fgets(line, sizeof line, stdin) != NULL) {
    char *words[WORDS];
    int count = 0;
    for (char *word = strtok(line, " \n"); word != NULL && count < WORDS; word = strtok(NULL, " \n")) {
      words[count++] = word;
    }
    if (count > 0) run(words, count);
    fflush(stdout);
  }
  return 0;
}
