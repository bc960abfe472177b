// Drives Debian's libqpid-proton-cpp with the commands described in `driven.ts`. The library has a thread of its own
// and reconnects by itself.

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <iostream>
#include <map>
#include <mutex>
#include <proton/binary.hpp>
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver.hpp>
#include <proton/receiver_options.hpp>
#include <proton/reconnect_options.hpp>
#include <proton/sender.hpp>
#include <proton/source_options.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/types.hpp>
#include <proton/work_queue.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

typedef std::vector<std::string> words;

std::string value_text(const proton::value &value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

proton::value value_of(const std::string &kind) {
  proton::value value;
  if (kind == "text") value = std::string("Grüße, ☃");
  else if (kind == "number") value = int64_t(4711);
  else if (kind == "flag") value = true;
  else if (kind == "list") value = std::vector<proton::value>{"one", int64_t(2), false};
  else value = std::map<std::string, proton::value>{{"colour", "blue"}, {"count", int64_t(3)}};
  return value;
}

proton::binary from_hex(const std::string &hex) {
  proton::binary bytes;
  if (hex == "-") return bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes.push_back(uint8_t(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

struct incoming {
  int number;
  proton::message message;
};

/**
 * The library's objects are used only on its thread, through `inject`. Fields shared by both threads are guarded by the
 * lock.
 */
class driver : public proton::messaging_handler {
  proton::container container_;
  std::thread thread_;
  proton::connection connection_;
  std::map<int, proton::delivery> deliveries_;
  int delivery_count_ = 0;
  std::map<std::string, proton::sender> senders_;
  std::map<std::string, proton::receiver> receivers_;
  int drained_count_ = 0;

  int held_ = 0;

  std::mutex lock_;
  proton::work_queue *work_ = nullptr;
  std::condition_variable changed_;
  std::deque<incoming> messages_;
  std::string outcome_, failure_;
  bool is_open_ = false, was_lost_ = false, is_attached_ = false, is_drained_ = false, is_closed_ = false;

  template <class Change> void change(Change apply) {
    std::lock_guard<std::mutex> guard(lock_);
    apply();
    changed_.notify_all();
  }

  /** Waits until the condition holds. Throws if a failure was recorded. */
  template <class Condition> void wait(Condition holds) {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [&] { return holds() || !failure_.empty(); });
    if (failure_.empty()) return;
    std::string failure;
    failure.swap(failure_);
    throw std::runtime_error(failure);
  }

  template <class Work> void inject(Work work) {
    std::lock_guard<std::mutex> guard(lock_);
    work_->add(work);
  }

  void on_connection_open(proton::connection &connection) override {
    connection_ = connection;
    deliveries_.clear();
    change([&] {
      work_ = &connection.work_queue();
      is_open_ = true;
    });
  }
  void on_transport_error(proton::transport &transport) override {
    const std::string reason = transport.error().what();
    change([&] {
      if (is_open_) was_lost_ = true;
      else if (!was_lost_) failure_ = reason;
      is_open_ = false;
    });
  }
  void on_connection_error(proton::connection &) override {}
  void on_transport_close(proton::transport &) override {
    change([&] { is_closed_ = true; });
  }
  void on_sender_error(proton::sender &sender) override { fail(sender.error()); }
  void on_receiver_error(proton::receiver &receiver) override { fail(receiver.error()); }
  void on_error(const proton::error_condition &) override {}
  void fail(const proton::error_condition &condition) {
    change([&] { failure_ = condition.name(); });
  }

  void on_tracker_accept(proton::tracker &) override { settled("accepted"); }
  void on_tracker_reject(proton::tracker &) override { settled("rejected"); }
  void on_tracker_release(proton::tracker &) override { settled("released"); }
  void settled(const char *outcome) {
    change([&] { outcome_ = outcome; });
  }

  void on_receiver_open(proton::receiver &) override {
    change([&] { is_attached_ = true; });
  }
  void on_message(proton::delivery &delivery, proton::message &message) override {
    if (delivery.receiver().draining()) {
      drained_count_ += 1;
      delivery.accept();
      return;
    }
    const int number = ++delivery_count_;
    deliveries_[number] = delivery;
    change([&] { messages_.push_back({number, message}); });
  }
  void on_receiver_drain_finish(proton::receiver &) override {
    change([&] { is_drained_ = true; });
  }

  std::string deliver(const std::string &address, const proton::message &message) {
    outcome_.clear();
    inject([=] {
      auto found = senders_.find(address);
      if (found == senders_.end()) found = senders_.emplace(address, connection_.open_sender(address)).first;
      found->second.send(message);
    });
    wait([&] { return !outcome_.empty(); });
    return outcome_;
  }

  void attach(const std::string &address, int credit, const proton::receiver_options &options, bool drains) {
    is_attached_ = is_drained_ = false;
    inject([=] {
      auto found = receivers_.find(address);
      if (found != receivers_.end() && found->second.active()) found->second.close();
      proton::receiver receiver = connection_.open_receiver(address, options);
      receivers_[address] = receiver;
      receiver.add_credit(uint32_t(credit));
      drained_count_ = 0;
      if (drains) receiver.drain();
    });
    wait([&] { return drains ? is_drained_ : is_attached_; });
  }

 public:
  driver() : container_(*this) { container_.auto_stop(false); }

  std::string open(const words &given) {
    {
      std::lock_guard<std::mutex> guard(lock_);
      if (!was_lost_) {
        proton::connection_options options;
        options.user(given[2]).password(given[3]).sasl_allow_insecure_mechs(true).sasl_allowed_mechs("PLAIN");
        options.reconnect(proton::reconnect_options().delay(proton::duration(20)).max_delay(proton::duration(20)));
        if (given[4] != "0") options.idle_timeout(proton::duration(std::stoul(given[4])));
        container_.connect(given[1], options);
        thread_ = std::thread([this] { container_.run(); });
      }
    }
    wait([&] { return is_open_; });
    was_lost_ = false;
    inject([=] {
      senders_.clear();
      receivers_.clear();
    });
    return "";
  }

  std::string lost() {
    wait([&] { return was_lost_; });
    return "";
  }

  std::string send(const words &given) {
    proton::message message(from_hex(given[2]));
    message.inferred(true);
    if (given[3] != "-") message.content_type(given[3]);
    for (size_t i = 4; i < given.size(); i++) {
      const size_t at = given[i].find('=');
      message.properties().put(given[i].substr(0, at), given[i].substr(at + 1));
    }
    return deliver(given[1], message);
  }

  std::string send_value(const words &given) { return deliver(given[1], proton::message(value_of(given[2]))); }

  std::string receive(const words &given) {
    proton::receiver_options options;
    options.credit_window(0).auto_accept(false).delivery_mode(
        given[3] == "settled" ? proton::delivery_mode::AT_MOST_ONCE : proton::delivery_mode::AT_LEAST_ONCE);
    proton::source_options source;
    if (given[3] == "copy") source.distribution_mode(proton::source::COPY);
    if (given[4] != "-") {
      proton::source::filter_map filters;
      filters.put("x-ks-group", proton::value(given[4]));
      source.filters(filters);
    }
    options.source(source);
    attach(given[1], std::stoi(given[2]), options, false);
    return "";
  }

  std::string drain(const words &given) {
    attach(given[1], std::stoi(given[2]), proton::receiver_options().credit_window(0).auto_accept(false), true);
    return std::to_string(drained_count_);
  }

  proton::message take() {
    wait([&] { return !messages_.empty(); });
    std::lock_guard<std::mutex> guard(lock_);
    const incoming first = messages_.front();
    messages_.pop_front();
    held_ = first.number;
    return first.message;
  }

  std::string next() {
    const proton::message message = take();
    std::ostringstream out;
    const proton::binary bytes =
        message.body().empty() ? proton::binary() : proton::get<proton::binary>(message.body());
    if (bytes.empty()) out << "-";
    char digits[3];
    for (uint8_t byte : bytes) {
      std::snprintf(digits, sizeof digits, "%02x", byte);
      out << digits;
    }
    const std::string type = message.content_type();
    out << " " << (type.empty() ? "-" : type) << " " << message.delivery_count();
    std::map<std::string, proton::scalar> properties;
    proton::get(message.properties().value(), properties);
    for (const auto &one : properties) out << " " << one.first << "=" << one.second;
    return out.str();
  }

  std::string next_value() {
    const proton::value body = take().body();
    for (const char *kind : {"text", "number", "flag", "list", "map"}) {
      if (value_text(value_of(kind)) == value_text(body)) return kind;
    }
    return "other:" + value_text(body);
  }

  std::string settle(const words &given) {
    const int held = held_;
    const std::string outcome = given[1];
    inject([=] {
      proton::delivery &delivery = deliveries_[held];
      if (outcome == "accepted") delivery.accept();
      else if (outcome == "rejected") delivery.reject();
      else if (outcome == "released") delivery.release();
      else delivery.modify();
    });
    return "";
  }

  std::string close() {
    is_closed_ = false;
    inject([=] { connection_.close(); });
    wait([&] { return is_closed_; });
    return "";
  }

  void end() {
    if (!thread_.joinable()) return;
    container_.stop();
    thread_.join();
  }

  std::string run(const words &given) {
    const std::string &verb = given[0];
    if (verb == "open") return open(given);
    if (verb == "close") return close();
    if (verb == "lost") return lost();
    if (verb == "send") return send(given);
    if (verb == "send-value") return send_value(given);
    if (verb == "receive") return receive(given);
    if (verb == "drain") return drain(given);
    if (verb == "next") return next();
    if (verb == "next-value") return next_value();
    if (verb == "settle") return settle(given);
    throw std::runtime_error("there is no " + verb);
  }
};

}  // namespace

int main() {
  driver one;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    words given;
    for (std::string word; in >> word;) given.push_back(word);
    if (given.empty()) continue;
    try {
      const std::string answer = one.run(given);
      std::cout << "ok" << (answer.empty() ? "" : " ") << answer << std::endl;
    } catch (const std::exception &error) {
      std::cout << "error " << error.what() << std::endl;
    }
  }
  one.end();
  return 0;
}
