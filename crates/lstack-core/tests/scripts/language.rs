//! The words of a script, one command a line; `#` starts a comment.
//!
//! | Line | What happens |
//! |---|---|
//! | `config KEY VALUE` | a setting of the stack; before all else |
//! | `option NAME VALUE` | a socket option |
//! | `connect` | the socket connects to the peer |
//! | `established WORDS` | the same with the whole handshake; the words are the peer's options |
//! | `listen N` | the socket listens with that backlog |
//! | `accepted WORDS` | a listener, the peer's handshake, and `accept` |
//! | `accept` | takes a connection; what follows is about it |
//! | `use listener`, `use connection` | what follows is about that one |
//! | `peer PORT` | what follows is another peer's |
//! | `write N`, `write N more` | the program sends; all bytes are taken unless `= N` says else |
//! | `read N = N`, `peek`, `discard` | the program reads |
//! | `shutdown read`, `write`, `both`; `close`; `abort` | the program ends it |
//! | `< SEGMENT` | the peer sends |
//! | `<< SEGMENT` | so do the lines of this kind that follow, in one burst |
//! | `< icmp KIND` | an error about the last segment that was looked at |
//! | `> SEGMENT` | the stack has sent this, and nothing before it |
//! | `> any N`, `> all` | it has sent that many more, or whatever it was |
//! | `+ TIME` | time passes: `us`, `ms`, `s` |
//! | `state`, `poll`, `events`, `error`, `info`, `counter` | what must be true now |
//! | `repeat N` … `end` | several times |
//!
//! Calls may end in `= RESULT`: a number, `ok`, or the name of an error. Whatever the stack sends
//! must be looked at before the next line that makes something happen, so a script says all that
//! is sent, and when. Segments are written as [`crate::script`] has them; the peer's `ts V $ts`
//! echoes the stack's last timestamp, and what the stack sends may be asked further for `win N`,
//! `ecn N`, `dscp N`, `ttl N`, `echo N` (its timestamp's) and `stamped`.

use std::collections::VecDeque;

use lstack_core::tcp::{Close, More, RecvMode, Shutdown, TcpOption};
use lstack_core::{SocketId, StackConfig};

use crate::script::{Script, Sent};
use crate::support::Side;
use crate::support::frames::{STRANGER, ipv4, to_a};
use crate::values;

/// Runs a script.
///
/// # Errors
///
/// `LINE: what is wrong`.
pub fn run(text: &str) -> Result<(), String> {
    let lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split('#').next().unwrap_or_default().trim()))
        .filter(|(_, line)| !line.is_empty())
        .collect();
    let mut run = Run::default();
    run.block(&lines)?;
    let last = lines.last().map_or(0, |&(number, _)| number);
    run.deliver_burst();
    run.nothing_unseen().map_err(|error| format!("{last}: at the end {error}"))
}

#[derive(Default)]
struct Run {
    /// Made by the first line that is no `config`.
    script: Option<Script>,
    config: Vec<(String, String)>,
    unseen: VecDeque<Sent>,
    burst: Vec<String>,
    listener: Option<SocketId>,
    connection: Option<SocketId>,
    last: Option<Sent>,
}

type Outcome = Result<(), String>;

impl Run {
    fn block(&mut self, lines: &[(usize, &str)]) -> Outcome {
        let mut rest = lines;
        while let Some((&(number, line), after)) = rest.split_first() {
            rest = after;
            if let Some(times) = line.strip_prefix("repeat ") {
                let times: usize = values::number(times).map_err(|e| format!("{number}: {e}"))?;
                let end = after.iter().position(|&(_, line)| line == "end");
                let end = end.ok_or_else(|| format!("{number}: no `end`"))?;
                for _ in 0..times {
                    self.block(&after[..end])?;
                }
                rest = &after[end + 1..];
            } else {
                self.line(line).map_err(|error| format!("{number}: `{line}`: {error}"))?;
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Outcome {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        if word == "<<" {
            if self.burst.is_empty() {
                self.nothing_unseen()?;
            }
            let text = self.peers_words(rest)?;
            self.burst.push(text);
            return Ok(());
        }
        self.deliver_burst();
        match word {
            ">" => self.expect(rest),
            "state" | "poll" | "events" | "error" | "info" | "counter" => self.check(word, rest),
            "config" => {
                let (key, value) = rest.split_once(' ').ok_or("it has a key and a value")?;
                if self.script.is_some() {
                    return Err("too late: the stack has started".to_owned());
                }
                values::configure(
                    &mut StackConfig::clone(&crate::support::config(Side::A, 1_500)),
                    key,
                    value,
                )?;
                self.config.push((key.to_owned(), value.to_owned()));
                Ok(())
            }
            _ => {
                self.nothing_unseen()?;
                self.act(word, rest)
            }
        }
    }

    fn script(&mut self) -> &mut Script {
        let config = &self.config;
        self.script.get_or_insert_with(|| {
            Script::with(|stack| {
                for (key, value) in config {
                    values::configure(stack, key, value).expect("it was tried when it was read");
                }
            })
        })
    }

    fn deliver_burst(&mut self) {
        if !self.burst.is_empty() {
            let burst = std::mem::take(&mut self.burst);
            let texts: Vec<&str> = burst.iter().map(String::as_str).collect();
            self.script().put_burst(&texts);
        }
    }

    /// Lines that make something happen.
    fn act(&mut self, word: &str, rest: &str) -> Outcome {
        let (arguments, wanted) = match rest.split_once('=') {
            Some((arguments, wanted)) => (arguments.trim(), Some(wanted.trim())),
            None => (rest, None),
        };
        let got = match word {
            "<" => return self.peer_sends(rest),
            "+" => {
                let time = values::duration(rest)?;
                self.script().pass(time);
                return Ok(());
            }
            "peer" => {
                let port = values::number(rest)?;
                self.script().play_port(port);
                return Ok(());
            }
            "use" => return self.choose(rest),
            "established" => return self.establish(rest),
            "accepted" => return self.be_accepted(rest),
            _ => self.call(word, arguments)?,
        };
        let wanted = match (word, wanted) {
            (_, Some(wanted)) => wanted,
            ("write", None) => arguments.split(' ').next().unwrap_or_default(),
            ("read" | "peek" | "discard", None) => return Err("it needs a result".to_owned()),
            _ => "ok",
        };
        values::same(&got, wanted)
    }

    /// Calls of the program; the answer in words.
    fn call(&mut self, word: &str, arguments: &str) -> Result<String, String> {
        let script = self.script();
        let (now, id) = (script.lone.now, script.id);
        Ok(match word {
            "connect" => values::unit(script.connect()),
            "listen" => {
                script.listen(values::number(arguments)?);
                "ok".to_owned()
            }
            "accept" => match script.stack().tcp_accept(now, id) {
                Ok(accepted) => {
                    script.id = accepted.socket;
                    (self.listener, self.connection) = (Some(id), Some(accepted.socket));
                    "ok".to_owned()
                }
                error => values::unit(error.map(|_| ())),
            },
            "option" => {
                let (name, value) = arguments.split_once(' ').ok_or("it has a name and a value")?;
                let option: TcpOption = values::option(name, value)?;
                script.option(option);
                "ok".to_owned()
            }
            "write" => {
                let (len, more) = match arguments.split_once(' ') {
                    None => (arguments, More::No),
                    Some((len, "more")) => (len, More::Yes),
                    Some(_) => return Err("only `more` may follow the length".to_owned()),
                };
                values::count(script.write_more(values::number(len)?, more))
            }
            "read" => values::count(script.receive(values::number(arguments)?, RecvMode::Take)),
            "peek" => values::count(script.receive(values::number(arguments)?, RecvMode::Peek)),
            "discard" => {
                values::count(script.receive(values::number(arguments)?, RecvMode::Discard))
            }
            "shutdown" => {
                let how = match arguments {
                    "read" => Shutdown::Read,
                    "write" => Shutdown::Write,
                    "both" => Shutdown::Both,
                    _ => return Err("of `read`, `write` and `both`".to_owned()),
                };
                let result = script.stack().tcp_shutdown(now, id, how);
                script.poll();
                values::unit(result)
            }
            "close" => {
                script.close(Close::Graceful);
                "ok".to_owned()
            }
            "abort" => {
                script.close(Close::Reset);
                "ok".to_owned()
            }
            _ => return Err("there is no such command".to_owned()),
        })
    }

    fn choose(&mut self, name: &str) -> Outcome {
        let id = match name {
            "listener" => self.listener,
            "connection" => self.connection,
            _ => return Err("of `listener` and `connection`".to_owned()),
        };
        self.script().id = id.ok_or("there is none")?;
        Ok(())
    }

    /// Connects, with a handshake in which the peer offers these options.
    fn establish(&mut self, words: &str) -> Outcome {
        values::same(&self.call("connect", "")?, "ok")?;
        self.expect("all")?;
        let answer = self.peers_words(&format!("SA 0 1 0 {words}"))?;
        self.script().put(&answer);
        self.expect("A 1 1 0")?;
        self.script().events();
        self.check("state", "established")
    }

    fn be_accepted(&mut self, words: &str) -> Outcome {
        self.script().listen(4);
        self.script().put(&format!("S 0 0 0 {words}"));
        self.take_sent();
        let stamped = self.unseen.pop_back().and_then(|sent| sent.timestamps);
        let echo = stamped.map_or(String::new(), |(value, _)| format!(" ts 1000000 {value}"));
        self.script().put(&format!("A 1 1 0{echo}"));
        values::same(&self.call("accept", "")?, "ok")?;
        self.script().events();
        self.check("state", "established")
    }

    /// The peer's words, with our last timestamp put in.
    fn peers_words(&self, words: &str) -> Result<String, String> {
        if !words.contains("$ts") {
            return Ok(words.to_owned());
        }
        let last = self.last.as_ref().and_then(|last| last.timestamps);
        let (value, _) = last.ok_or("nothing with a timestamp was sent")?;
        Ok(words.replace("$ts", &value.to_string()))
    }

    fn peer_sends(&mut self, words: &str) -> Outcome {
        if let Some(error) = words.strip_prefix("icmp ") {
            let last = self.last.as_ref().ok_or("no segment was looked at")?;
            let message = values::icmp_error(error, &last.packet)?;
            let frame = to_a(&ipv4(STRANGER, Side::A.ip(), 1, &message));
            self.script().lone.put(&frame);
            return Ok(());
        }
        let words = self.peers_words(words)?;
        self.script().put(&words);
        Ok(())
    }

    fn take_sent(&mut self) {
        let sent = self.script().sent_segments();
        self.unseen.extend(sent);
    }

    fn nothing_unseen(&mut self) -> Outcome {
        if self.script.is_none() {
            return Ok(());
        }
        self.take_sent();
        if self.unseen.is_empty() {
            return Ok(());
        }
        let texts: Vec<&str> = self.unseen.iter().map(|sent| sent.text.as_str()).collect();
        Err(format!("the stack has sent more:\n    > {}", texts.join("\n    > ")))
    }

    fn expect(&mut self, words: &str) -> Outcome {
        self.take_sent();
        let count = match words.strip_prefix("any ") {
            Some(count) => values::number(count)?,
            None if words == "all" => self.unseen.len(),
            None => {
                let sent = self.unseen.pop_front().ok_or("nothing was sent")?;
                let result = values::matches(&sent, words);
                self.last = Some(sent);
                return result;
            }
        };
        if self.unseen.len() < count {
            return Err(format!("only {} were sent", self.unseen.len()));
        }
        self.last = self.unseen.drain(..count).next_back().or(self.last.take());
        Ok(())
    }

    fn check(&mut self, word: &str, rest: &str) -> Outcome {
        let script = self.script();
        match word {
            "state" => values::same(values::state_name(script.state()), rest),
            "poll" => values::same(&values::readiness(script.mask()), rest),
            "events" => values::same(&values::readiness(script.events().bits()), rest),
            "error" => {
                let error = script.error().map_or("none".to_owned(), values::error_name);
                values::same(&error, rest)
            }
            _ => {
                let (name, wanted) = rest.split_once(' ').ok_or("it has a name and a value")?;
                let got = match word {
                    "info" => values::info(&script.info(), name)?,
                    _ => script.find_counter(name).ok_or("there is no such counter")?.to_string(),
                };
                values::same(&got, wanted)
            }
        }
    }
}
