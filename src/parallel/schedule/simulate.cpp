// 1. Every stage has a clock and a position in its list. A stage runs until it has to wait: for a tensor that is not
//    yet sent or, with bounded buffers, for a free buffer. The loop visits the stages in rounds until all are at their
//    end. If no stage advances in a round, there is a deadlock.
// 2. The order of the visits does not matter: each receive has one sender and a queue, so the stages form a Kahn
//    process network.
// 3. Tensor k arrives at the time of its send plus the communication time. The receive ends at the later of the arrival
//    and the receiver's clock. With b buffers, send k cannot end before tensor k - b is
//    received.
// 4. A message has an identity (direction, microbatch, global chunk of its sender), which the receiver compares with
//    the expected one, because a wrong order with matching counts would otherwise not be detected.
#include "parallel/schedule/simulate.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"

namespace te::parallel {

namespace {

struct Message {
  int microbatch;
  int global_chunk;  // global chunk that computed it
  double arrival;
};

/// A queue between two stages. Messages stay in the vectors because later sends need the times of receipt.
struct Channel {
  std::vector<Message> sent;
  std::vector<double> received;
};

class Simulator {
 public:
  Simulator(const std::vector<StageSchedule>& schedule, const ScheduleShape& shape, const Costs& costs)
      : schedule_(schedule), shape_(shape), costs_(costs), states_(schedule.size()) {
    TE_CHECK(static_cast<int>(schedule.size()) == shape.stages, "schedule of {} stages for a shape of {}",
             schedule.size(), shape.stages);
    TE_CHECK(costs.per_chunk.empty() || static_cast<int>(costs.per_chunk.size()) == shape.total_chunks(),
             "costs of {} global chunks for a shape of {}", costs.per_chunk.size(), shape.total_chunks());
    result_.stages.resize(schedule.size());
  }

  Simulation run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) moved = advance(stage) || moved;
    }
    check_no_deadlock();
    for (int stage = 0; stage < shape_.stages; ++stage) check_finished(stage);
    for (const State& state : states_) result_.makespan = std::max(result_.makespan, state.clock);
    for (int stage = 0; stage < shape_.stages; ++stage)
      result_.ideal = std::max(result_.ideal, shape_.microbatches * work_of(stage));
    result_.bubble_fraction =
        result_.makespan > 0 ? (result_.makespan - result_.ideal) / result_.makespan : 0;
    return std::move(result_);
  }

 private:
  using Key = std::pair<int, int>;  // chunk, microbatch

  struct State {
    size_t position = 0;
    double clock = 0;
    Channel forward_in;   // from the previous stage
    Channel backward_in;  // from the next stage
    // Completed actions of each (chunk, microbatch).
    std::set<Key> forward_received, forward_done, backward_received, backward_done, wgrad_done, in_flight;
  };

  /// Costs of one chunk for one microbatch.
  Costs::Chunk chunk_costs(int stage, int chunk) const {
    if (!costs_.per_chunk.empty())
      return costs_.per_chunk[static_cast<size_t>(shape_.global_chunk(stage, chunk))];
    return {.forward = costs_.forward / shape_.chunks,
            .backward = costs_.backward / shape_.chunks,
            .wgrad = costs_.backward * costs_.wgrad_fraction / shape_.chunks};
  }

  double work_of(int stage) const {
    double sum = 0;
    for (int chunk = 0; chunk < shape_.chunks; ++chunk)
      sum += chunk_costs(stage, chunk).forward + chunk_costs(stage, chunk).backward;
    return sum;
  }

  State& neighbor(int stage, int step) {
    return states_[static_cast<size_t>((stage + step + shape_.stages) % shape_.stages)];
  }

  /// Runs the stage until it has to wait; true if it advanced.
  bool advance(int stage) {
    const std::vector<Action>& actions = schedule_[static_cast<size_t>(stage)].actions;
    State& state = states_[static_cast<size_t>(stage)];
    const size_t before = state.position;
    while (state.position < actions.size() && act(stage, state, actions[state.position])) ++state.position;
    return state.position != before;
  }

  /// Executes one action, or returns false if it has to wait.
  bool act(int stage, State& state, const Action& action) {
    const Key key = {action.chunk, action.microbatch};
    const int global_chunk = shape_.global_chunk(stage, action.chunk);
    switch (action.kind) {
      case ActionKind::receive_forward:
        if (!receive(stage, state, state.forward_in, action, global_chunk - 1)) return false;
        state.forward_received.insert(key);
        return true;
      case ActionKind::receive_backward:
        if (!receive(stage, state, state.backward_in, action, global_chunk + 1)) return false;
        state.backward_received.insert(key);
        return true;
      case ActionKind::send_forward:
        require(state.forward_done.contains(key), stage, action, "runs before its output is computed");
        return send(state, neighbor(stage, 1).forward_in, capacity(stage, action),
                    {action.microbatch, global_chunk, 0});
      case ActionKind::send_backward:
        require(state.backward_done.contains(key), stage, action, "runs before its output is computed");
        return send(state, neighbor(stage, -1).backward_in, capacity(stage, action),
                    {action.microbatch, global_chunk, 0});
      default:
        compute(stage, state, action);
        return true;
    }
  }

  bool receive(int stage, State& state, Channel& channel, const Action& action, int global_chunk) const {
    const size_t next = channel.received.size();
    if (next == channel.sent.size()) return false;
    const Message& message = channel.sent[next];
    TE_CHECK(message.microbatch == action.microbatch && message.global_chunk == global_chunk,
             "stage {}: {} expects microbatch {} of chunk {}, but microbatch {} of chunk {} arrives", stage,
             action_name(action.kind), action.microbatch, global_chunk, message.microbatch,
             message.global_chunk);
    state.clock = costs_.waits_for_receiver
                      ? std::max(state.clock, message.arrival - costs_.communication) + costs_.communication
                      : std::max(state.clock, message.arrival);
    channel.received.push_back(state.clock);
    return true;
  }

  /// Capacity of the send's channel; 0 is no limit.
  size_t capacity(int stage, const Action& action) const {
    const int more = shape_.channel_messages(stage, action.kind) - 1;
    return static_cast<size_t>(costs_.buffers > 0 ? costs_.buffers + more : 0);
  }

  bool send(State& state, Channel& channel, size_t buffers, Message message) const {
    const size_t index = channel.sent.size();
    if (buffers > 0 && index >= buffers) {
      const size_t before = index - buffers;  // the message whose buffer this one reuses
      if (before >= channel.received.size()) return false;
      state.clock = std::max(state.clock, channel.received[before]);
    }
    message.arrival = state.clock + costs_.communication;
    channel.sent.push_back(message);
    return true;
  }

  void compute(int stage, State& state, const Action& action) {
    const Key key = {action.chunk, action.microbatch};
    const int global_chunk = shape_.global_chunk(stage, action.chunk);
    const bool split = shape_.kind == ScheduleKind::zero_bubble;
    const Costs::Chunk costs = chunk_costs(stage, action.chunk);
    double duration = 0;
    if (action.kind == ActionKind::forward) {
      require(global_chunk == 0 || state.forward_received.contains(key), stage, action,
              "runs before its input arrives");
      require(state.forward_done.insert(key).second, stage, action, "runs twice");
      state.in_flight.insert(key);
      duration = costs.forward;
    } else if (action.kind == ActionKind::backward) {
      const bool last = global_chunk == shape_.total_chunks() - 1;
      require(state.forward_done.contains(key), stage, action, "runs before its forward");
      require(last || state.backward_received.contains(key), stage, action, "runs before its input arrives");
      require(state.backward_done.insert(key).second, stage, action, "runs twice");
      duration = costs.backward - (split ? costs.wgrad : 0);
    } else {
      require(state.backward_done.contains(key), stage, action, "runs before its backward");
      require(state.wgrad_done.insert(key).second, stage, action, "runs twice");
      duration = costs.wgrad;
    }
    record(result_.stages[static_cast<size_t>(stage)], state, action, duration);
    if (action.kind == (split ? ActionKind::wgrad : ActionKind::backward)) state.in_flight.erase(key);
  }

  static void record(StageSimulation& out, State& state, const Action& action, double duration) {
    const double end = state.clock + duration;
    out.timeline.push_back({action.kind, action.microbatch, action.chunk, state.clock, end});
    out.busy += duration;
    out.peak = std::max(out.peak, static_cast<int>(state.in_flight.size()));
    state.clock = end;
  }

  void check_no_deadlock() const {
    std::vector<std::string> waiting;
    for (size_t stage = 0; stage < schedule_.size(); ++stage) {
      const std::vector<Action>& actions = schedule_[stage].actions;
      if (states_[stage].position == actions.size()) continue;
      const Action& action = actions[states_[stage].position];
      waiting.push_back(fmt::format("stage {} at {} of microbatch {} on chunk {}", stage,
                                    action_name(action.kind), action.microbatch, action.chunk));
    }
    TE_CHECK(waiting.empty(), "deadlock: {}", fmt::join(waiting, ", "));
  }

  void check_finished(int stage) const {
    const State& state = states_[static_cast<size_t>(stage)];
    const auto passes = static_cast<size_t>(shape_.chunks) * static_cast<size_t>(shape_.microbatches);
    const size_t wgrads = shape_.kind == ScheduleKind::zero_bubble ? passes : 0;
    TE_CHECK(state.forward_done.size() == passes && state.backward_done.size() == passes &&
                 state.wgrad_done.size() == wgrads,
             "stage {}: {} forward, {} backward, {} wgrad passes; expected {}, {} and {}", stage,
             state.forward_done.size(), state.backward_done.size(), state.wgrad_done.size(), passes, passes,
             wgrads);
    for (const Channel* channel : {&state.forward_in, &state.backward_in}) {
      TE_CHECK(channel->received.size() == channel->sent.size(), "stage {}: {} messages are never received",
               stage, channel->sent.size() - channel->received.size());
    }
  }

  static void require(bool holds, int stage, const Action& action, const char* what) {
    TE_CHECK(holds, "stage {}: {} of microbatch {} on chunk {} {}", stage, action_name(action.kind),
             action.microbatch, action.chunk, what);
  }

  const std::vector<StageSchedule>& schedule_;
  const ScheduleShape& shape_;
  const Costs& costs_;
  std::vector<State> states_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const std::vector<StageSchedule>& schedule, const ScheduleShape& shape,
                    const Costs& costs) {
  return Simulator(schedule, shape, costs).run();
}

}  // namespace te::parallel
