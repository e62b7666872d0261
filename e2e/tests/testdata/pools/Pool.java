import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.net.InetSocketAddress;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import org.postgresql.PGConnection;

/** Serves a pool of HikariCP as pool.js serves one of node-postgres. */
public class Pool {
	static final int SIZE = 3;

	public static void main(String[] arguments) throws Exception {
		HikariConfig config = new HikariConfig();
		config.setJdbcUrl("jdbc:postgresql://" + arguments[0] + "/app");
		config.setUsername("web");
		config.setPassword(System.getenv("PGPASSWORD"));
		config.setMaximumPoolSize(SIZE);
		config.setMaxLifetime(0);
		config.setConnectionTimeout(120_000);
		config.setValidationTimeout(110_000);
		HikariDataSource pool = new HikariDataSource(config);
		HttpServer server = HttpServer.create(new InetSocketAddress(8082), 0);
		server.createContext("/", exchange -> {
			byte[] answer = ask(pool).getBytes();
			exchange.sendResponseHeaders(200, answer.length);
			exchange.getResponseBody().write(answer);
			exchange.close();
		});
		server.start();
	}

	static String ask(HikariDataSource pool) {
		long began = System.nanoTime();
		StringBuilder lines = new StringBuilder();
		Connection[] connections = new Connection[SIZE];
		try {
			for (int i = 0; i < SIZE; i++) {
				connections[i] = pool.getConnection();
				try (PreparedStatement statement = connections[i].prepareStatement("select ?::int")) {
					statement.setInt(1, 1);
					statement.execute();
				}
				lines.append(connections[i].unwrap(PGConnection.class).getBackendPID());
				lines.append(' ').append((System.nanoTime() - began) / 1_000_000).append('\n');
			}
			for (Connection connection : connections) {
				connection.close();
			}
		} catch (SQLException error) {
			lines.append("error: ").append(error);
		}
		return lines.toString();
	}
}
