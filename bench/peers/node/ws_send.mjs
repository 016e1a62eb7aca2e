// A peer: Node and the library `ws`, one `send` for each socket. Told on stdin as bench/peers/orders.py says.
import { createInterface } from 'node:readline';
import { WebSocketServer } from 'ws';

const server = new WebSocketServer({ host: '127.0.0.1', port: 0, backlog: 4096, perMessageDeflate: false });
server.on('connection', (socket) => socket.send('{"type":"live"}'));
server.on('listening', () => console.log(JSON.stringify({ port: server.address().port })));

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function send(events, burst, intervalUs, size) {
  const head = '{"type":"event","topic":"';
  const frame = Buffer.from(head + 'x'.repeat(size - head.length - 2) + '"}');
  let due = performance.now();
  for (let sent = 0; sent < events; sent += burst) {
    for (let i = 0; i < burst; i++) {
      for (const socket of server.clients) socket.send(frame, { binary: false });
    }
    due += intervalUs / 1000;
    await sleep(Math.max(0, due - performance.now()));
  }
  console.log(JSON.stringify({ done: true }));
}

createInterface({ input: process.stdin })
  .on('line', (line) => send(...line.split(' ').slice(1).map(Number)))
  .on('close', () => process.exit(0));
